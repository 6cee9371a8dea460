"""What making an item costs: work that holds the interpreter's lock, work that does not, waits, files, sockets, locks.

Spawned workers import this module: it does not import Lightning. What computes is counted in chunks, not in seconds: as
in real programs the amount of work is fixed, and takes longer when two share a core. How long a chunk takes is measured
once (`calibrated`).
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import io
import json
import math
import multiprocessing
import os
import random
import re
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .program import COMPUTES, Program, Work

_WORDS = " ".join(f"token{i * 7919 % 613} of-{i % 37}" for i in range(60))
_RECORD = json.dumps(
    {"id": 7, "tags": [f"t{i}" for i in range(40)], "box": {str(i): [i / 7, i / 3] for i in range(30)}}
)
_PATTERN = re.compile(r"(\w+?)(\d+)\s+of-(\d+)")
_BLOCK = np.random.default_rng(0).integers(0, 60, 40_000, dtype=np.uint8).tobytes()
_PACKED = zlib.compress(_BLOCK)
_NUMBERS = np.random.default_rng(1).standard_normal(8_000)
_FILE_SECONDS_PER_BYTE = 1.4e-9
FILE_BYTES = 1536 << 20


def _tokenise() -> None:
    counts: dict[str, int] = {}
    for word in _WORDS.lower().split():
        key = word.strip("-").replace("token", "t")
        counts[key] = counts.get(key, 0) + 1


def _json() -> None:
    found = json.loads(_RECORD)
    found["n"] = sum(len(v) for v in found["box"].values())


def _regex() -> None:
    _PATTERN.sub(r"\2-\1-\3", _WORDS)


def _zlib() -> None:
    zlib.decompress(_PACKED)


def _hash() -> None:
    hashlib.sha256(_BLOCK).digest()


def _sort() -> None:
    np.sort(_NUMBERS)


_jpeg_bytes: bytes = b""


def _jpeg() -> None:
    from PIL import Image

    global _jpeg_bytes
    if not _jpeg_bytes:
        pixels = np.random.default_rng(2).integers(0, 255, (12, 12, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels).resize((96, 96))
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=80)
        _jpeg_bytes = out.getvalue()
    np.asarray(Image.open(io.BytesIO(_jpeg_bytes)).convert("RGB"), dtype=np.uint8)


CHUNKS: dict[str, Callable[[], None]] = {
    "tokenise": _tokenise,
    "json": _json,
    "regex": _regex,
    "zlib": _zlib,
    "hash": _hash,
    "sort": _sort,
    "jpeg": _jpeg,
    "threads": _hash,
}


def calibrated() -> dict[str, float]:
    """Return the CPU seconds that a chunk of each kind takes, at its best."""
    rates = {}
    for kind, chunk in CHUNKS.items():
        best = math.inf
        for _ in range(5):
            started = time.thread_time()
            for _ in range(20):
                chunk()
            best = min(best, (time.thread_time() - started) / 20)
        rates[kind] = best
    return rates


def wait(seconds: float) -> None:
    """Wait for something that needs no CPU."""
    if seconds > 0:
        time.sleep(seconds)


def burn(cpu_s: float) -> None:
    """Spend CPU time outside the loader, where nothing else is to be told from it."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        _tokenise()


def factor(seed: int, index: int, spread: float) -> float:
    """Return how much more or less than a typical one this item costs; 1 in the mean."""
    if not spread:
        return 1.0
    return math.exp(random.Random((seed << 20) ^ index).gauss(-spread * spread / 2, spread))


def touched(size: int) -> bytearray:
    """Return memory that is really there."""
    block = bytearray(size)
    block[::4096] = b"x" * len(range(0, size, 4096))
    return block


class Maker:
    """Makes items: does their work. Goes to the workers, by fork or pickled.

    Args:
        program: What the work is.
        seed: Which items are large.
        rates: Seconds of a chunk; see `calibrated`.
        store: Address of the HTTP store.
        folder: Where the lock's file lies.
        data: A file of `FILE_BYTES` that items are read from.
    """

    def __init__(
        self,
        program: Program,
        seed: int,
        rates: dict[str, float],
        store: tuple[str, int] | None,
        folder: Path,
        data: Path | None,
    ) -> None:
        self.program = program
        self.seed = seed
        self.rates = rates
        self.store = store
        self.folder = folder
        self.data = data
        self.kept: list[bytearray] = []
        kinds = {w.kind for w in program.work}
        self.lock = multiprocessing.get_context(program.start_method).Lock() if "lock" in kinds else None
        self._own: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": {}}

    def make(self, index: int) -> np.ndarray:
        """Do the work of one item and return it."""
        for work in self.program.work:
            if index % work.every == work.every // 2:
                self._do(work, index)
        if self.program.leak_item_bytes:
            self.kept.append(touched(self.program.leak_item_bytes))
        return np.full(self.program.floats, float(index % 1000), dtype=np.float32)

    def _do(self, work: Work, index: int) -> None:
        seconds = work.amount_s * factor(self.seed, index, work.spread)
        if work.kind in COMPUTES:
            chunks = max(1, round(seconds / self.rates[work.kind]))
            if work.kind == "threads":
                halves = [self._pool().submit(_repeat, CHUNKS[work.kind], (chunks + 1) // 2) for _ in range(2)]
                for half in halves:
                    half.result()
            else:
                _repeat(CHUNKS[work.kind], chunks)
        elif work.kind == "sleep":
            wait(seconds)
        elif work.kind == "http":
            self._get(index, 2_000, seconds)
        elif work.kind == "bandwidth":
            self._get(index, max(1_000, int(seconds * BANDWIDTH)), 0.0)
        elif work.kind == "file":
            self._read(index, int(seconds / _FILE_SECONDS_PER_BYTE))
        elif work.kind == "lock":
            assert self.lock is not None
            with self.lock:
                wait(seconds)
        elif work.kind == "flock":
            with (self.folder / "lock").open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                wait(seconds)
        else:
            raise ValueError(f"there is no work {work.kind!r}")

    def _pool(self) -> ThreadPoolExecutor:
        return self._kept_open("pool", lambda: ThreadPoolExecutor(2))  # type: ignore[no-any-return]

    def _kept_open(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what this process has open under a name; a forked one opens its own."""
        if self._own.get("pid") != os.getpid():
            self._own = {"pid": os.getpid()}
        if name not in self._own:
            self._own[name] = make()
        return self._own[name]

    def _get(self, index: int, size: int, seconds: float) -> None:
        assert self.store is not None
        address = self.store
        connection = self._kept_open("http", lambda: http.client.HTTPConnection(*address, timeout=60))
        connection.request("GET", f"/{index}?bytes={size}&wait={seconds:.6f}")
        body = connection.getresponse().read()
        if len(body) != size:
            raise RuntimeError(f"the store sent {len(body)} of {size} bytes")

    def _read(self, index: int, size: int) -> None:
        """Read a part of the file, from the disk unless the program leaves the page cache alone."""
        assert self.data is not None
        data = self.data
        file = self._kept_open("file", lambda: os.open(data, os.O_RDONLY))
        size = min(size, FILE_BYTES // 4)
        at = (index * 7_919 * 4096) % (FILE_BYTES - size)
        os.pread(file, size, at)
        if not self.program.cached:
            os.posix_fadvise(file, at & ~4095, size + 4096, os.POSIX_FADV_DONTNEED)


BANDWIDTH = 20e6
"""Bytes a second that the slow store delivers to all its readers together."""


def _repeat(chunk: Callable[[], None], times: int) -> None:
    for _ in range(times):
        chunk()


def data_file(folder: Path) -> Path:
    """Make, or find, the file that items are read from."""
    path = folder / "items.bin"
    if not path.is_file() or path.stat().st_size != FILE_BYTES:
        block = os.urandom(1 << 20)
        with path.open("wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    return path


def drop_cache(path: Path) -> None:
    """Have the file leave the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
