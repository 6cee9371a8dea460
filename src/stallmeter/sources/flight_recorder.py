"""When this rank asked for each collective, from PyTorch's flight recorder.

PyTorch keeps the last 2,000 collectives of a process anyway (gloo since 2.9, NCCL since 2.3; `TORCH_FR_BUFFER_SIZE`).
Reading them is no collective, no barrier, and takes no lock of a process group. It does hold the interpreter's lock: up
to 40 ms for a full buffer. So it is read the more rarely the longer it took.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..records import Arrivals

SHARE = 0.002
"""Of the time, spent in reading."""

FIRST_S, LONGEST_S = 0.5, 300.0
"""Between two readings: most between the first ones, and at most."""

MOST = 2000
"""Collectives of one reading that are kept, the newest."""

_DTYPE_BYTES = {
    "Double": 8,
    "Long": 8,
    "ComplexFloat": 8,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
}
"""Of the flight recorder's names; all others are taken for one byte."""


class Passes(Protocol):
    """Backward passes of this process: see `stallmeter.sources.backward`."""

    def begin(self) -> None:
        """Note them from now on."""

    def around(self, times_ns: list[int]) -> list[tuple[int, int] | None]:
        """Return the begin and end of the pass that each time lies in."""

    def close(self) -> None:
        """Note no more of them."""


class FlightRecorderSource:
    """Reads the collectives that were noted since the last reading.

    Where their ends are not noted, as of gloo's, the last one in a backward pass ends with the pass.

    Args:
        since_s: Unix time from which on they are wanted.
        passes: Backward passes; begun when a collective has no end.
        read: Returns the flight recorder's JSON; found in torch by default.
        clock: Monotonic seconds.
    """

    name = "flight recorder"

    def __init__(
        self,
        since_s: float,
        passes: Passes | None = None,
        *,
        read: Callable[[], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._since_ns = since_s * 1e9
        self._passes = passes
        self._read = read
        self._clock = clock
        self._due_s = -math.inf
        self._begun_s: float | None = None
        self._seen: dict[str, int] = {}

    def sample(self, time_s: float) -> Sequence[Arrivals]:
        """Return what is new, by process group, where it is time to look.

        Args:
            time_s: Unix time of this poll.
        """
        if self._clock() < self._due_s:
            return ()
        read = self._read or _torch_reader()
        if read is None:
            return ()
        started_s = self._clock()
        found: dict[str, list[tuple[int, int, int, int]]] = {}
        for entry in entries(read()):
            self._note(entry, found)
        self._end_with_passes(found)
        now_s = self._clock()
        self._begun_s = started_s if self._begun_s is None else self._begun_s
        # A run may end before the first pause would: at first they are as long as it has lasted.
        early_s = max(FIRST_S, now_s - self._begun_s)
        self._due_s = now_s + min(LONGEST_S, early_s, (now_s - started_s) / SHARE)
        return [self._arrivals(time_s, group, rows[-MOST:]) for group, rows in found.items()]

    def close(self) -> None:
        """Note no more backward passes."""
        if self._passes is not None:
            self._passes.close()

    def _end_with_passes(self, found: dict[str, list[tuple[int, int, int, int]]]) -> None:
        """Give the last collective of each backward pass its end, where none is noted."""
        open_ended = [(group, i) for group, rows in found.items() for i, row in enumerate(rows) if row[2] < 0]
        if self._passes is None or not open_ended:
            return
        self._passes.begin()
        around = self._passes.around([found[group][i][1] for group, i in open_ended])
        last: dict[tuple[int, int], tuple[str, int]] = {}
        for (group, i), one in zip(open_ended, around, strict=True):
            if one is not None and (one not in last or found[group][i][1] >= found[last[one][0]][last[one][1]][1]):
                last[one] = (group, i)
        for (_, end_ns), (group, i) in last.items():
            number, began_ns, _, size = found[group][i]
            found[group][i] = (number, began_ns, end_ns - began_ns, size)

    def _note(self, entry: Mapping[str, Any], found: dict[str, list[tuple[int, int, int, int]]]) -> None:
        try:
            group = ":".join(map(str, entry["process_group"]))
            number, began_ns = int(entry["collective_seq_id"]), int(entry["time_created_ns"])
            done_ns = int(entry.get("time_discovered_completed_ns") or 0)
        except (KeyError, TypeError, ValueError, OverflowError):  # of another version of the recorder
            return
        if entry.get("is_p2p") or began_ns < self._since_ns or number <= self._seen.get(group, -1):
            return
        # gloo's are never seen complete, only given up for new ones.
        if not done_ns and not entry.get("retired"):
            return  # it goes on: the next reading has all of it
        self._seen[group] = number
        took_ns = done_ns - began_ns if done_ns else -1000
        found.setdefault(group, []).append((number, began_ns, took_ns, _sent_bytes(entry)))

    def _arrivals(self, time_s: float, group: str, rows: Sequence[tuple[int, int, int, int]]) -> Arrivals:
        base_ns = rows[0][1] // 1_000_000_000 * 1_000_000_000
        return Arrivals(
            time_s=time_s,
            group=group,
            base_s=base_ns / 1e9,
            sequence=tuple(row[0] for row in rows),
            began_us=tuple((row[1] - base_ns) // 1000 for row in rows),
            took_us=tuple(row[2] // 1000 for row in rows),
            sent_bytes=tuple(row[3] for row in rows),
        )


def entries(text: bytes | str) -> Iterator[Mapping[str, Any]]:
    """Yield the collectives of a flight recorder's JSON, one after the other.

    Taken apart in one call, two thousand of them would hold the interpreter's lock for 100 ms.
    """
    whole = text.decode(errors="replace") if isinstance(text, bytes) else text
    decoder = json.JSONDecoder()
    at = whole.find('"entries"')
    at = whole.find("[", at) + 1 if at >= 0 else 0
    while at > 0 and (begin := whole.find("{", at)) >= 0 and not whole[at:begin].strip(" ,\n\t"):
        try:
            entry, at = decoder.raw_decode(whole, begin)
        except (ValueError, RecursionError):  # cut off
            return
        yield entry


def _sent_bytes(entry: Mapping[str, Any]) -> int:
    sizes, kinds = entry.get("input_sizes") or (), entry.get("input_dtypes") or ()
    try:
        return int(
            sum(
                math.prod(size) * _DTYPE_BYTES.get(kinds[i] if i < len(kinds) else "", 1)
                for i, size in enumerate(sizes)
            )
        )
    except (TypeError, LookupError, ValueError, OverflowError):
        return 0


def _torch_reader() -> Callable[[], bytes] | None:
    """Return torch's own function, where this version has one and a process group is there."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_available = getattr(distributed, "is_available", None)  # not while it is being imported
    if is_available is None or not is_available() or not distributed.is_initialized():
        return None
    core = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(core, name, None)
        if dump is not None:
            return lambda dump=dump: dump(True, False)  # type: ignore[misc]
    return None
