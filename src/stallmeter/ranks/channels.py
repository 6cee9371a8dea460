"""What connects the ranks of a job: the launcher's key-value store, else files in the recordings' directory.

Both are used through means of our own. Of the process group only its store's address is read, so that no collective
and no lock of its own is touched. A store is called only where one is known to be: a client of torch writes a page of
C++ frames to stderr when nobody answers. All functions run on a thread of their own; none imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any
from weakref import WeakValueDictionary

from ..recording import write_atomically
from .launcher import job_from_environment
from .run_folder import Channel
from .values import calling, values_of

_TAKEN = "(taken)"
CONNECT_S = 3.0
"""Most seconds for making a connection."""

EXCHANGE_FOLDER = ".ranks"
"""Folder in the recordings' directory in which ranks without a store find each other."""

STALE_S = 86_400.0
"""What nobody has touched there for so long was left by a job that was killed."""


def find_channels(
    topic: str, *, directory: Path, job: str | None = None, environ: Mapping[str, str] = os.environ
) -> Mapping[str, Callable[[], Channel]]:
    """Return what connects this process with the other ranks at the moment, by address.

    Args:
        topic: What is asked about.
        directory: Where recordings go.
        job: Names this start of the ranks, where that is known; else the launcher's variables do.
        environ: The launcher's variables.
    """
    # After a restart by torchrun the store may be the old one.
    prefix = f"stallmeter/{topic}/{environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    store = _agents_store(environ) or _groups_store()
    if store is not None:
        return {"|".join(map(str, store)): partial(_connect, store, prefix)}
    job = job or job_from_environment(environ)
    if job is None:
        return {}
    name = hashlib.sha256(f"{job}|{topic}".encode()).hexdigest()[:16]
    return {"files": partial(FolderChannel, directory / EXCHANGE_FOLDER / name)}


def group_rank() -> tuple[int, int] | None:
    """Return rank and world size of torch's process group; None while there is none."""
    torch_distributed = _initialized()
    if torch_distributed is None:
        return None
    return torch_distributed.get_rank(), torch_distributed.get_world_size()


def _initialized() -> Any:
    """Return ``torch.distributed`` when this process has a process group."""
    torch_distributed = sys.modules.get("torch.distributed")
    is_available = getattr(torch_distributed, "is_available", None)  # not while it is being imported
    if is_available is None or not is_available() or not torch_distributed.is_initialized():  # type: ignore[union-attr]
        return None
    return torch_distributed


def _agents_store(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return where torchrun's agent has its store; it is there before the ranks are."""
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or "torch.distributed" not in sys.modules:
        return None
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return (host, int(port)) if host and port.isdecimal() else None


def _groups_store() -> tuple[str, int] | tuple[str] | None:
    """Return where the process group has its store: host and port, or the path of a file."""
    torch_distributed = _initialized()
    if torch_distributed is None:
        return None
    try:
        store = torch_distributed.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if hasattr(store, "port"):
            return store.host, store.port
        return (store.path,) if hasattr(store, "path") else None
    except (AttributeError, LookupError, RuntimeError, ValueError):  # the group was destroyed meanwhile
        return None


_clients: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()
"""By address and thread. A thread needs one for all it asks about: a server of many ranks has few files to open."""


def _connect(address: tuple[str, int] | tuple[str], prefix: str) -> Channel:
    torch_distributed: Any = sys.modules["torch.distributed"]
    if len(address) == 1:
        return StoreChannel(calling(torch_distributed.FileStore, address[0], -1), prefix)
    host, port = address
    key = (host, port, os.getpid(), get_ident())  # a fork must not talk through its parent's
    client = _clients.get(key)
    if client is not None:
        return StoreChannel(client, prefix)
    # First a bare socket: torch's client would go on trying and print to stderr where nobody listens.
    socket.create_connection((host, port), CONNECT_S).close()
    client = calling(
        torch_distributed.TCPStore,
        host,
        port,
        is_master=False,
        timeout=timedelta(seconds=CONNECT_S),
        wait_for_workers=False,
    )
    _clients[key] = client
    return StoreChannel(client, prefix)


class StoreChannel:
    """A channel through a store of torch's.

    Args:
        store: A client that no other thread uses.
        prefix: Of all keys.
    """

    keeps_files = False

    def __init__(self, store: Any, prefix: str) -> None:
        self._values = values_of(store)
        self._prefix = prefix
        self._seen = 0
        self._missing: set[int] = set()
        """Questions that were announced and are not there yet."""

    def ask(self, nonce: str) -> None:
        """Ask; see `stallmeter.ranks.run_folder.Channel`, as for the others."""
        # A store has no lists: `add` is atomic and gives each question a number of its own. Between the two calls a
        # question is announced and not there yet; rank 0 looks for it again.
        number = self._values.count(f"{self._prefix}/asked", 1)
        self._set(f"ask/{number}", nonce)

    def take_answer(self, nonce: str) -> str | None:
        """Return the answer, and remove it."""
        return self._pop(f"answer/{nonce}")

    def withdraw(self, nonce: str) -> None:
        """Wait no longer; the question stays."""

    def questions(self) -> list[str]:
        """Return new questions."""
        asked = self._values.total(f"{self._prefix}/asked")
        self._missing.update(range(self._seen + 1, asked + 1))
        self._seen = max(self._seen, asked)
        found = {number: nonce for number in sorted(self._missing) if (nonce := self._pop(f"ask/{number}"))}
        self._missing -= found.keys()
        return list(found.values())

    def answer(self, nonce: str, name: str) -> None:
        """Answer a question."""
        self._set(f"answer/{nonce}", name)

    def is_taken(self, nonce: str) -> bool:
        """Whether an answer was taken."""
        return not self._values.is_there(f"{self._prefix}/answer/{nonce}")

    def expect_posts(self) -> None:
        """Nothing has to be there for posts."""

    def post(self, rank: int, text: str) -> bool:
        """Leave a rank's newest post; the one before is lost."""
        self._set(f"post/{rank}", text)
        return True

    def is_posted(self, rank: int) -> bool:
        """Whether a rank's newest post has not been taken yet."""
        return self._get(f"post/{rank}") not in (None, _TAKEN)

    def posted(self, rank: int) -> str | None:
        """Return a rank's newest post, and leave it for others."""
        text = self._get(f"post/{rank}")
        return None if text == _TAKEN else text

    def take_post(self, rank: int) -> str | None:
        """Return a rank's newest post, and put a mark in its place."""
        text = self._get(f"post/{rank}")
        if text in (None, _TAKEN):
            return None
        # Only if it is still this one: a newer one, posted at this moment, is taken the next time.
        self._values.replace(f"{self._prefix}/post/{rank}", text, _TAKEN)
        return text

    def end_posts(self, ranks: Iterable[int]) -> None:
        """Remove them: a program of many fits would fill the store."""
        for rank in ranks:
            self._values.remove(f"{self._prefix}/post/{rank}")

    def _set(self, key: str, value: str) -> None:
        self._values.write(f"{self._prefix}/{key}", value)

    def _get(self, key: str) -> str | None:
        return self._values.read(f"{self._prefix}/{key}")

    def _pop(self, key: str) -> str | None:
        # Two calls, yet no race: each key is taken by one rank alone, questions by rank 0, an answer by who asked.
        value = self._get(key)
        if value is not None:
            self._values.remove(f"{self._prefix}/{key}")
        return value


class FolderChannel:
    """A channel through small files, for ranks that share the recordings' directory and have no store.

    Args:
        folder: Where the files are; made by who asks first.
    """

    keeps_files = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(self, nonce: str) -> None:
        """Ask; see `stallmeter.ranks.run_folder.Channel`, as for the others."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{nonce}.ask").touch()

    def take_answer(self, nonce: str) -> str | None:
        """Return the answer, and remove it."""
        path = self._folder / f"{nonce}.answer"
        try:
            name = path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None
        path.unlink()
        return name

    def withdraw(self, nonce: str) -> None:
        """Remove what is left of a question, and the folder with the last of them."""
        for path in self._folder.glob(f"{nonce}.*"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are still in it
            self._folder.rmdir()
            self._folder.parent.rmdir()

    def questions(self) -> list[str]:
        """Return questions that have no answer."""
        return [path.stem for path in self._folder.glob("*.ask")]

    def answer(self, nonce: str, name: str) -> None:
        """Answer a question."""
        question = self._folder / f"{nonce}.ask"
        if question.exists():  # else who asked has given up, and nobody would remove the answer
            # Atomically: on a shared file system the other rank could read the name's first half.
            write_atomically(self._folder / f"{nonce}.answer", name)
            # Not before: another rank that has its answer removes the folder when it finds it empty.
            question.unlink(missing_ok=True)

    def is_taken(self, nonce: str) -> bool:
        """Whether an answer was taken."""
        return not (self._folder / f"{nonce}.answer").exists()

    def expect_posts(self) -> None:
        """Make the folder that posts go to, and remove what killed jobs have left beside it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for other in self._folder.parent.iterdir():
            with contextlib.suppress(OSError):  # another job's rank 0 looks, too
                if other != self._folder and time.time() - other.stat().st_mtime > STALE_S:
                    shutil.rmtree(other)

    def post(self, rank: int, text: str) -> bool:
        """Leave a rank's newest post; not where rank 0 does not read yet, or any more: nobody would remove it."""
        if not self._folder.is_dir():
            return False
        try:
            write_atomically(self._folder / f"{rank}.post", text)
        except FileNotFoundError:  # rank 0 has removed the folder at this moment
            return False
        return True

    def is_posted(self, rank: int) -> bool:
        """Whether a rank's newest post has not been taken yet."""
        return (self._folder / f"{rank}.post").exists()

    def posted(self, rank: int) -> str | None:
        """Return a rank's newest post, and leave it for others."""
        try:
            return (self._folder / f"{rank}.post").read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None

    def take_post(self, rank: int) -> str | None:
        """Return a rank's newest post, and remove it."""
        taken = self._folder / f"{rank}.taken"
        try:
            (self._folder / f"{rank}.post").replace(taken)  # before it is read: a newer one may come at this moment
            return taken.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None

    def end_posts(self, ranks: Iterable[int]) -> None:  # noqa: ARG002 - all of them
        """Remove the folder with all posts."""
        # Under another name first: a rank that posts at this moment finds the folder whole, or none.
        gone = self._folder.with_name(f"{self._folder.name}.gone")
        with contextlib.suppress(OSError):
            self._folder.rename(gone)
        for folder in (gone, self._folder):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are still in it
            self._folder.parent.rmdir()
