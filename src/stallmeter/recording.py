"""The run's append-only file: written by one thread, read while it grows and after a crash.

A recording is a folder with files ``rank<R>.<part>.jsonl``. Each line is one JSON array: ``[kind, values…]`` or
``[kind, {…}]``. Every part begins with a header line, so each can be read alone. A last line without its newline is a
torn write and is ignored. Nothing is ever rewritten.
"""

from __future__ import annotations

import json
import os
import re
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
    return round(value, 7) if abs(value) < 1e6 else round(value, 3)


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
        return _JSON.encode([kind, *[_rounded(v) if isinstance(v, float) else v for v in _VALUES[kind](record)]])
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
        self._lines: list[str] = []
        self._part = 0
        self._size = 0
        self.total_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        while _path(folder, header.rank, self._part).exists():
            self._part += 1
        self._file = self._open()

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

    def flush(self) -> None:
        """Write what was added since the last flush.

        Raises:
            OSError: The disk is full or gone; the lines are kept for the next try, up to 100,000 of them.
        """
        if not self._lines:
            return
        if self._size > self._part_bytes:
            self._file.close()
            self._part += 1
            self._file = self._open()
        data = ("\n".join(self._lines) + "\n").encode()
        start = self._file.tell()
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes could be written to {self.path}")
        except OSError:
            self._file.truncate(start)
            self._file.seek(start)
            del self._lines[:-100_000]
            raise
        self._size += len(data)
        self.total_bytes += len(data)
        self._lines.clear()

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _open(self) -> Any:
        file = self.path.open("wb", buffering=0)
        line = json.dumps(["header", {**_plain(asdict(self.header)), "columns": _COLUMNS}], separators=(",", ":"))
        file.write((line + "\n").encode())
        self._size = len(line) + 1
        return file


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
        every: Of the steps each so-many-th is read, the others are skipped.
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
        self._steps = 0
        self.skipped = 0
        """Lines in the middle of a file that were no records."""

    def header(self) -> Header:
        """Return the header of the first part.

        Raises:
            RecordingError: It is missing, torn or of a newer schema.
        """
        return self._read_header(self._parts()[0])[0]

    def newest(self) -> tuple[Path, Header]:
        """Return the newest part and its header. Raises as `header` does."""
        part = self._parts()[-1]
        return _path(self.folder, self.rank, part), self._read_header(part)[0]

    def __iter__(self) -> Iterator[tuple[records.Record | Verdict, Position]]:
        """Yield each complete record with the position behind it, up to the end of what is written."""
        for part in self._parts():
            if part < self.position.part:
                continue
            offset = self.position.offset if part == self.position.part else 0
            columns = self._read_header(part)[1]
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

    def count(self) -> int:
        """Return how many lines there are to read in all parts, from their first to their last."""
        found = 0
        for part in self._parts():
            with _path(self.folder, self.rank, part).open("rb") as file:
                found += sum(1 for line in file if self._wants(line))
        return found

    def _wants(self, line: bytes) -> bool:
        return not line.startswith(b'["header"') and (self._lines is None or self._lines.match(line) is not None)

    def _decode(self, line: bytes, columns: Mapping[str, list[str]]) -> records.Record | Verdict | None:
        if not self._wants(line):
            return None
        if self._every > 1 and line.startswith(b'["step",'):
            self._steps += 1
            if (self._steps - 1) % self._every:
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
            raise RecordingError(f"{path} is no recording of stallmeter: its first line is not a header") from exc
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
