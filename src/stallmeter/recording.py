"""The run's append-only file: written by one thread, read while it grows and after a crash.

A recording is a folder with files ``rank<R>.<part>.jsonl``. Each line is one JSON array: ``[kind, values…]`` or
``[kind, {…}]``. Every part begins with a header line, so each can be read alone; it gets its name when that line is
written. A last line without its newline is a torn write and is ignored. Nothing is ever rewritten.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from . import records
from .diagnosis import Abstention, Advice, Diagnosis, Evidence, Severity, Verdict, WorkerAdvice
from .errors import RecordingError

SCHEMA = 1
"""Raised when a reader of the older version could misread a newer file."""

PART_BYTES = 16 * 2**20
"""Size at which a new part is begun."""

STEP_BYTES_LIMIT = 16 * 2**20
"""Size of a rank's recording from which full step detail is thinned out; see `Recorder.detail`. All that is kept is
read again when the run ends."""

KEPT_LINES = 100_000
"""Most lines kept while they cannot be written: 20 MB, and some minutes of the fastest run."""

_KINDS: dict[str, type[Any]] = {
    "step": records.StepRecord,
    "ledger": records.LedgerRecord,
    "window": records.WindowRecord,
    "log": records.UserMetrics,
    "host": records.HostSample,
    "gpu": records.GpuSample,
    "batch": records.WorkerBatch,
    "loader": records.LoaderInfo,
    "fork": records.Fork,
    "workers": records.WorkerMemory,
    "content": records.BatchContent,
    "change": records.WorkerChange,
    "trial": records.WorkerTrial,
    "device": records.DeviceStep,
    "allocator": records.AllocatorSample,
    "sync": records.SyncCalls,
    "profile": records.DeepProfile,
    "event": records.Event,
    "verdict": Verdict,
}
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}
_FIELD_NAMES: dict[type[Any], frozenset[str]] = {}
_COLUMNS = {kind: [f.name for f in fields(cls)] for kind, cls in _KINDS.items() if kind in ("step", "batch", "device")}
_VALUES = {kind: attrgetter(*columns) for kind, columns in _COLUMNS.items()}
"""These kinds hold numbers alone."""
_STEP_INDEX = re.compile(rb'\["(?:step|device)",(\d+)')
_NAME = re.compile(r"rank(\d+)\.(\d+)\.jsonl$")
_SECRET = re.compile(r"//[^/\s]*@")
_SECRET_VALUE = re.compile(r"(?i)((?:password|passwd|token|secret|api_?key)=)[^&\s'\"]+")


def redact(text: str) -> str:
    """Remove ``user:password@`` and ``password=…`` from every URL in a text."""
    return _SECRET_VALUE.sub(r"\1***", _SECRET.sub("//", text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What was known when the recording began."""

    schema: int = SCHEMA
    run_id: str
    """Identifies the recording; the ranks of one fit share it."""
    rank: int = 0
    world_size: int = 1
    started_s: float
    """Unix time of the ledger's first instant."""
    host: str = ""
    pid: int = 0
    version: str = ""
    """Version of stallmeter."""
    framework: str = ""
    """What was recorded: ``lightning 2.6.6``, ``loop`` …"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Static facts for the report: packages, accelerator, precision, budget."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a reader of one rank's files stands."""

    part: int = 0
    offset: int = 0


_JSON = json.JSONEncoder(separators=(",", ":"))
"""Made once: `json.dumps` would make one for every line."""


def _rounded(value: float) -> float:
    """Keep 7 decimals, 7 significant digits of what is smaller than 0.1, and Unix times whole."""
    if -0.1 < value < 0.1:
        return float(f"{value:.7g}")
    if -1e9 < value < 1e9:
        return round(value, 7 if -1e6 < value < 1e6 else 3)
    return value


def _text(value: Any) -> str:
    """Return a number, a flag or None as JSON: in half the time of the encoder, and steps are many."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if type(value) is float and math.isfinite(value):
        if -0.1 < value < 0.1:
            return f"{value:.7g}" if value else "0.0"
        return repr(_rounded(value))
    if type(value) is int:
        return repr(value)
    return _JSON.encode(_rounded(value) if isinstance(value, float) else value)


def _plain(value: Any) -> Any:
    if value is None or type(value) in (int, bool):
        return value
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, str):
        return redact(value)
    return value


def encode(record: records.Record | Verdict) -> str:
    """Return one line for a record, without the newline."""
    kind = _KIND_OF[type(record)]
    if kind in _VALUES:
        # What most values of a step are is written here: a call for each would take as long as all the rest.
        texts = ["null" if v is None else repr(v) if type(v) is int else _text(v) for v in _VALUES[kind](record)]
        return f'["{kind}",{",".join(texts)}]'
    if isinstance(record, records.UserMetrics):  # numbers that are not ours to round
        whole = {"time_s": record.time_s, "tracker_step": record.tracker_step, "metrics": dict(record.metrics)}
        return _JSON.encode([kind, whole])
    content = {k: v for k, v in _plain(asdict(record)).items() if v is not None}
    return _JSON.encode([kind, content])


def decode(line: str, columns: Mapping[str, list[str]] = _COLUMNS) -> records.Record | Verdict | None:
    """Return the record of one line; None for a kind that this version does not know.

    Raises:
        ValueError: The line is no record.
    """
    parsed = json.loads(line)
    if not isinstance(parsed, list) or not parsed or not isinstance(parsed[0], str):
        raise ValueError(f"not a record: {line[:80]!r}")
    cls = _KINDS.get(parsed[0])
    if cls is None:
        return None
    try:
        content = dict(zip(columns[parsed[0]], parsed[1:], strict=False)) if parsed[0] in columns else parsed[1]
        if cls is Verdict:
            return _verdict(content)
        if cls is records.HostSample:
            content["network"] = tuple(records.NetworkSample(**n) for n in content.get("network", ()))
        if cls is records.DeepProfile:
            content["operators"] = tuple(_build(records.Operator, o) for o in content.get("operators", ()))
        if cls is records.GpuSample and content.get("throttle_reasons") is not None:
            content["throttle_reasons"] = tuple(content["throttle_reasons"])
        return _build(cls, content)  # type: ignore[no-any-return]
    except (TypeError, LookupError, AttributeError) as exc:
        raise ValueError(f"not a {parsed[0]} record: {line[:80]!r}") from exc


def _build(cls: type[Any], content: Mapping[str, Any]) -> Any:
    known = _FIELD_NAMES.get(cls) or _FIELD_NAMES.setdefault(cls, frozenset(f.name for f in fields(cls)))
    if not content.keys() <= known:  # written by a newer version
        content = {k: v for k, v in content.items() if k in known}
    return cls(**content)


def _diagnosis(content: Mapping[str, Any]) -> Diagnosis:
    return _build(  # type: ignore[no-any-return]
        Diagnosis,
        {
            **content,
            "severity": Severity(content["severity"]),
            "evidence": tuple(_build(Evidence, e) for e in content.get("evidence", ())),
            "advice": tuple(_build(Advice, a) for a in content.get("advice", ())),
        },
    )


def _verdict(content: Mapping[str, Any]) -> Verdict:
    primary, workers = content.get("primary"), content.get("num_workers")
    return Verdict(
        primary=_diagnosis(primary) if primary else None,
        diagnoses=tuple(_diagnosis(d) for d in content.get("diagnoses", ())),
        abstained=tuple(Abstention(a["rule"], tuple(a["missing"])) for a in content.get("abstained", ())),
        num_workers=_build(WorkerAdvice, workers) if workers else None,
    )


class Recorder:
    """Writes one rank's recording.

    Lines are collected by `write` and reach the file in `flush`, in one unbuffered write: a forked child holds no
    buffer that it could write a second time, and a crash tears at most one line.

    Args:
        folder: The recording's folder; made when missing.
        header: First line of every part.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path, header: Header, *, part_bytes: int = PART_BYTES) -> None:
        self.folder = folder
        self.header = header
        self._part_bytes = part_bytes
        self._lines: deque[str] = deque()
        self._torn = False
        """Whether the first of the lines is the rest of one that the file holds the beginning of."""
        self._failing = False
        self._losses: list[str] = []
        self._dropped = 0
        self.total_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._part, self._file = self._new_part(0)

    @property
    def path(self) -> Path:
        """The part that is being written."""
        return _path(self.folder, self.header.rank, self._part)

    @property
    def detail(self) -> int:
        """Every how many steps one is kept: grows with the file, so that its size stays bounded in practice."""
        return 1 << min(10, int(self.total_bytes // STEP_BYTES_LIMIT))

    def write(self, record: records.Record | Verdict) -> None:
        """Add a record to what the next flush writes."""
        self._lines.append(encode(record))
        if self._failing:
            self._drop_oldest()

    def flush(self) -> None:
        """Write what was added since the last flush.

        Raises:
            OSError: The disk is full or gone. The lines are kept for the next try, up to `KEPT_LINES` of them; the
                oldest beyond that are dropped, see `take_losses`.
        """
        if not self._lines:
            return
        try:
            self._begin_part_when_due()
            self._append("\n".join(self._lines).encode() + b"\n")
        except OSError:
            self._failing = True
            self._drop_oldest()
            raise
        self._failing = False

    def take_losses(self) -> list[str]:
        """Return what was lost since this was last asked, a sentence for each cause."""
        losses, self._losses = self._losses, []
        if self._dropped:
            losses.append(f"{self._dropped:,} lines were dropped: it could not be written for too long to keep them")
            self._dropped = 0
        return losses

    def close(self) -> None:
        """Flush and close the file.

        Raises:
            OSError: The last lines could not be written, or a network file system says only now that earlier ones
                were not.
        """
        try:
            self.flush()
        except OSError as exc:
            raise OSError(exc.errno, f"the last {len(self._lines):,} lines are lost: {exc}") from exc
        finally:
            self._file.close()

    def _append(self, data: bytes) -> None:
        """Write lines and forget them; those that did not fit remain, the one that was torn with its rest."""
        start = self._file.tell()
        try:
            written = 0
            while written < len(data):
                some = self._file.write(memoryview(data)[written:])
                if not some:
                    raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written to {self.path}")
                written += some
        finally:
            end = self._file.tell()
            self.total_bytes += end - start
            if end - start >= len(data):
                self._lines.clear()
                self._torn = False
            elif end > start:
                self._lines = deque(data[end - start : -1].decode().split("\n"))
                self._torn = data[end - start - 1 : end - start] != b"\n"

    def _drop_oldest(self) -> None:
        rest = self._lines.popleft() if self._torn else None
        while len(self._lines) > KEPT_LINES:
            self._lines.popleft()
            self._dropped += 1
        if rest is not None:
            self._lines.appendleft(rest)

    def _begin_part_when_due(self) -> None:
        if self._torn or self._file.tell() <= self._part_bytes:
            return
        try:
            part, file = self._new_part(self._part + 1)
        except OSError:
            return  # the part at hand may still take the lines; where it does not, that is said
        old, self._part, self._file = self._file, part, file
        try:
            old.close()
        except OSError as exc:  # a network file system says only now what it could not keep
            self._losses.append(f"lines before {self.path.name} may be missing: {exc}")

    def _new_part(self, part: int) -> tuple[int, Any]:
        """Return the first free part from this number on, open behind its header.

        It gets its name when its header is in it: a full disk leaves no part that nobody can read.
        """
        line = json.dumps(["header", {**_plain(asdict(self.header)), "columns": _COLUMNS}], separators=(",", ":"))
        temporary = self.folder / f"rank{self.header.rank}.{os.getpid()}.tmp"
        try:
            temporary.write_bytes(line.encode() + b"\n")
            while True:
                path = _path(self.folder, self.header.rank, part)
                try:
                    _name(temporary, path)
                except FileExistsError:
                    part += 1
                else:
                    return part, path.open("ab", buffering=0)
        finally:
            temporary.unlink(missing_ok=True)


def _name(temporary: Path, path: Path) -> None:
    """Give a file its name. Raises FileExistsError where another has it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except (OSError, AttributeError):  # there are file systems without links, and machines
        if path.exists():
            raise FileExistsError(path) from None
        temporary.rename(path)


def _path(folder: Path, rank: int, part: int) -> Path:
    return folder / f"rank{rank}.{part:04d}.jsonl"


def is_recording(path: Path) -> bool:
    """Whether a path is a recording's folder or one of its files, not a folder of recordings."""
    if path.is_dir():
        return any(_NAME.search(f.name) for f in path.glob("rank*.jsonl"))
    return _NAME.search(path.name) is not None


def find_recording(path: Path) -> Path:
    """Return the folder of a recording: ``path`` itself, the folder of that file, or the newest recording below it.

    Raises:
        RecordingError: There is none.
    """
    if path.is_file() and is_recording(path):
        return path.parent
    if not path.exists():
        raise RecordingError(f"there is no file or folder {str(path)!r}; recordings are in ./stallmeter by default")
    found = [f for f in path.rglob("rank*.jsonl") if _NAME.search(f.name)] if path.is_dir() else []
    if not found:
        raise RecordingError(
            f"{str(path)!r} holds no recording (files named rank0.0000.jsonl); pass the folder that the run printed"
        )
    if any(f.parent == path for f in found):
        return path
    return max(found, key=lambda f: (f.stat().st_mtime, str(f))).parent


def ranks(folder: Path) -> tuple[int, ...]:
    """Return the ranks that have files in a recording's folder, in order."""
    return tuple(sorted({int(m[1]) for f in folder.iterdir() if (m := _NAME.search(f.name))}))


class _NoHeaderError(RecordingError):
    """A part that is none."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is no recording of stallmeter: its first line is not a header")


def has_recording(folder: Path, rank: int) -> bool:
    """Whether a folder holds a recording of this rank; a part that could not even be begun is none."""
    try:
        Reader(folder, rank).header()
    except (RecordingError, OSError):
        return False
    return True


class Reader:
    """Reads one rank's recording from a position on; safe while it is written.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        position: Where to go on.
        lines: Matches the beginning of the lines to read; the others are skipped undecoded, which is ten times faster.
        every: Of the steps, and their parts on the device, those are read whose index this divides.
    """

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        position: Position | None = None,
        *,
        lines: re.Pattern[bytes] | None = None,
        every: int = 1,
    ) -> None:
        self.folder = folder
        self.rank = rank
        self.position = position or Position()
        self._lines = lines
        self._every = every
        self.skipped = 0
        """Lines in the middle of a file that were no records."""
        self.skipped_parts: list[str] = []
        """Names of the files passed over because they have no header: a crash or a full disk can leave such."""

    def header(self) -> Header:
        """Return the header of the first part that has one.

        Raises:
            RecordingError: There is none, or it is of a newer schema.
        """
        for _, header, _ in self._readable():
            return header
        raise _NoHeaderError(_path(self.folder, self.rank, self._parts()[0]))

    def newest(self) -> tuple[Path, Header]:
        """Return the newest part that has a header, and that. Raises as `header` does."""
        parts = self._parts()
        for part in reversed(parts):
            with contextlib.suppress(_NoHeaderError):
                return _path(self.folder, self.rank, part), self._read_header(part)[0]
        raise _NoHeaderError(_path(self.folder, self.rank, parts[0]))

    def __iter__(self) -> Iterator[tuple[records.Record | Verdict, Position]]:
        """Yield each complete record with the position behind it, up to the end of what is written."""
        for part, _, columns in self._readable(self.position.part):
            offset = self.position.offset if part == self.position.part else 0
            with _path(self.folder, self.rank, part).open("rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    self.position = Position(part, offset)
                    record = self._decode(line, columns)
                    if record is not None:
                        yield record, self.position

    def every_for(self, most: int) -> int:
        """Return the smallest power of two that divides the index of at most so many recorded steps."""
        powers: Counter[int] = Counter()
        for part, _, _ in self._readable():
            with _path(self.folder, self.rank, part).open("rb") as file:
                for line in file:
                    if line.startswith(b'["step",') and (step := _STEP_INDEX.match(line)):
                        powers[int(step[1]) & -int(step[1])] += 1  # the largest power of two in it; 0 has them all
        left, every = powers.total(), 1
        while left > most and every <= max(powers):
            left -= powers[every]
            every *= 2
        return every

    def _readable(self, first: int = 0) -> Iterator[tuple[int, Header, Mapping[str, list[str]]]]:
        """Yield the parts from this number on with what their headers say, and name those that have none."""
        for part in self._parts():
            if part < first:
                continue
            try:
                header, columns = self._read_header(part)
            except _NoHeaderError:
                name = _path(self.folder, self.rank, part).name
                if name not in self.skipped_parts:
                    self.skipped_parts.append(name)
            else:
                yield part, header, columns

    def _wants(self, line: bytes) -> bool:
        return not line.startswith(b'["header"') and (self._lines is None or self._lines.match(line) is not None)

    def _decode(self, line: bytes, columns: Mapping[str, list[str]]) -> records.Record | Verdict | None:
        if not self._wants(line):
            return None
        if self._every > 1 and (step := _STEP_INDEX.match(line)) and int(step[1]) % self._every:
            return None
        try:
            return decode(line.decode(), columns)
        except ValueError:
            self.skipped += 1
            return None

    def _parts(self) -> list[int]:
        parts = sorted(
            int(m[2]) for f in self.folder.iterdir() if (m := _NAME.search(f.name)) and int(m[1]) == self.rank
        )
        if not parts:
            raise RecordingError(f"{str(self.folder)!r} holds no recording of rank {self.rank}")
        return parts

    def _read_header(self, part: int) -> tuple[Header, Mapping[str, list[str]]]:
        path = _path(self.folder, self.rank, part)
        with path.open("rb") as file:
            line = file.readline()
        try:
            kind, content = json.loads(line)
            if kind != "header" or not isinstance(content, dict):
                raise ValueError(kind)
            header = _build(Header, content)
        except (ValueError, TypeError) as exc:
            raise _NoHeaderError(path) from exc
        if header.schema > SCHEMA:
            raise RecordingError(
                f"{path} has schema {header.schema}, this stallmeter reads up to {SCHEMA}: upgrade stallmeter"
            )
        return header, content.get("columns", _COLUMNS)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a small file so that a reader sees the old text or the new, never half of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:  # there is none any more, unless the disk is full
        temporary.unlink(missing_ok=True)


assert all(is_dataclass(cls) for cls in _KINDS.values())
