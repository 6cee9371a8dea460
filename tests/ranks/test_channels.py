"""One connection of a thread to a launcher's store, whatever it asks about."""

from __future__ import annotations

import gc
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from stallmeter.ranks import channels
from stallmeter.ranks.channels import find_channels
from stallmeter.ranks.run_folder import Channel


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
