"""What connects ranks: what one posts is there for rank 0, and a thread connects once, whatever it asks about."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from stallmeter.ranks import channels
from stallmeter.ranks.channels import FolderChannel, StoreChannel, find_channels
from stallmeter.ranks.run_folder import Channel

from ..ports import free_port


def folder(path: Path) -> Callable[[], FolderChannel]:
    (path / "posts").mkdir()
    return lambda: FolderChannel(path / "posts")


def file_store(path: Path) -> Callable[[], StoreChannel]:
    return lambda: StoreChannel(dist.FileStore(str(path / "store"), -1), "topic")


def tcp_store(path: Path) -> Callable[[], StoreChannel]:
    port = int(free_port())
    server = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))

    def client() -> StoreChannel:
        assert server.port == port
        return StoreChannel(
            dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30)),
            "topic",
        )

    return client


@pytest.mark.parametrize("version", ["2.2.0+cu121", "2.13.0+cpu"])
@pytest.mark.parametrize("kind", [folder, file_store, tcp_store])
def test_posts(
    kind: Callable[[Path], Callable[[], FolderChannel | StoreChannel]],
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest of each rank, as often as rank 0 looks; nothing, at once, of who has not posted."""
    monkeypatch.setattr("torch.__version__", version)
    connect = kind(tmp_path)
    first, second, reader = connect(), connect(), connect()
    assert reader.posted(1) is None
    text = "0~`!#$%&()*+-;<=>?@^_{|}" * 500  # all that base85 is made of, as long as the longest post
    first.post(1, text)
    second.post(2, "two")
    assert comes(reader, 1, text)
    assert comes(reader, 2, "two")
    assert reader.posted(3) is None
    first.post(1, "newer")
    assert comes(reader, 1, "newer")
    assert reader.posted(1) == "newer"
    assert first.is_posted(1)
    assert reader.take_post(1) == "newer"
    assert not first.is_posted(1)
    assert reader.take_post(1) is None
    reader.end_posts([1, 2])
    assert reader.posted(2) is None


@pytest.mark.parametrize("version", ["2.2.0+cu121", "2.13.0+cpu"])
@pytest.mark.parametrize("kind", [file_store, tcp_store])
def test_questions(
    kind: Callable[[Path], Callable[[], StoreChannel]],
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is told once, and its answer is there for who has asked."""
    monkeypatch.setattr("torch.__version__", version)
    connect = kind(tmp_path)
    asker, other, answerer = connect(), connect(), connect()
    asker.ask("a1")
    other.ask("b2")
    found: list[str] = []
    deadline_s = time.monotonic() + 30
    while len(found) < 2 and time.monotonic() < deadline_s:
        found += answerer.questions()
    assert sorted(found) == ["a1", "b2"]
    assert answerer.questions() == []
    assert asker.take_answer("a1") is None
    answerer.answer("a1", "folder")
    while (answer := asker.take_answer("a1")) is None and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert answer == "folder"
    while not answerer.is_taken("a1") and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert answerer.is_taken("a1")
    answerer.answer("b2", "folder")
    while answerer.is_taken("b2") and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert not answerer.is_taken("b2")


def comes(reader: FolderChannel | StoreChannel, rank: int, text: str) -> bool:
    """Wait for a post: a store's `set` is no answer that it is there."""
    deadline_s = time.monotonic() + 30
    while (found := reader.posted(rank)) != text and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return found == text


def test_a_thread_connects_once(tmp_path: Path) -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10), wait_for_workers=False)
    environ = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}

    def connect(topic: str) -> Channel:
        [make] = find_channels(topic, directory=tmp_path, environ=environ).values()
        return make()

    def clients() -> list[Any]:
        return [client for key, client in channels._clients.items() if server.port in key]

    posts, workers = connect("posts/run"), connect("workers/run")
    assert len(clients()) == 1
    posts.post(1, "a post")
    workers.post(1, "a word")
    assert (posts.posted(1), workers.posted(1), workers.posted(2)) == ("a post", "a word", None)
    others: list[Channel] = []
    thread = threading.Thread(target=lambda: others.append(connect("posts/run")))
    thread.start()
    thread.join()
    assert len(clients()) == 2
    assert others[0].posted(1) == "a post"
    others.clear()
    del posts, workers
    gc.collect()
    assert clients() == []
