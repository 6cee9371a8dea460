"""One line of a recording: what a record looks like in it, and the header that every part begins with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from typing import Any

from .. import records
from ..records.diagnosis import Abstention, Advice, Diagnosis, Evidence, Location, Severity, Verdict, WorkerAdvice
from ..records.redaction import redact

SCHEMA = 1
"""Raised when a reader of the older version could misread a newer file."""

_KINDS: dict[str, type[Any]] = {
    "step": records.StepRecord,
    "ledger": records.LedgerRecord,
    "window": records.WindowRecord,
    "log": records.UserMetrics,
    "host": records.HostSample,
    "gpu": records.GpuSample,
    "memory": records.MemorySample,
    "gc": records.GarbagePauses,
    "batch": records.WorkerBatch,
    "loader": records.LoaderInfo,
    "fork": records.Fork,
    "workers": records.WorkerMemory,
    "waits": records.WorkerWaits,
    "producers": records.ProducerLooks,
    "library": records.LibraryWait,
    "content": records.BatchContent,
    "evaluation": records.EvaluationBatches,
    "optimizer": records.OptimizerInfo,
    "change": records.WorkerChange,
    "trial": records.WorkerTrial,
    "device": records.DeviceStep,
    "allocator": records.AllocatorSample,
    "sync": records.SyncCalls,
    "profile": records.DeepProfile,
    "compiler": records.CompilerSample,
    "modes": records.DebugModes,
    "autocast": records.CpuAutocast,
    "wide_numbers": records.WideNumbers,
    "made_weights": records.MadeWeights,
    "fixed_features": records.FixedFeatures,
    "repeated_backward": records.RepeatedBackward,
    "same_results": records.SameResults,
    "convolutions": records.Convolutions,
    "unused_gradients": records.UnusedGradients,
    "dense_embeddings": records.DenseEmbeddings,
    "dropped_gradients": records.DroppedGradients,
    "subnormal_tensors": records.SubnormalTensors,
    "scored_positions": records.ScoredPositions,
    "look": records.CodeLook,
    "lock": records.LockTrial,
    "arrivals": records.Arrivals,
    "ddp": records.DdpTimes,
    "event": records.Event,
    "verdict": Verdict,
}

_SPOTS = tuple(one.name for one in fields(records.CodeLook) if one.type == "tuple[CodeSpot, ...]")
"""What a look tells function by function."""
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}
_FIELD_NAMES: dict[type[Any], dict[str, None]] = {}
"""In their order."""
_COLUMNS = {kind: [f.name for f in fields(cls)] for kind, cls in _KINDS.items() if kind in ("step", "batch", "device")}

_VALUES = {kind: attrgetter(*columns) for kind, columns in _COLUMNS.items()}
"""These kinds hold numbers alone."""


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
    before_s: float | None = None
    """For how long the program had run then; None where that is not known."""
    host: str = ""
    pid: int = 0
    process_space: str = ""
    """Of all processes with this number the one that was meant: see `stallmeter.machine.procfs`. Empty: not known."""
    version: str = ""
    """Version of stallmeter."""
    framework: str = ""
    """What was recorded: ``lightning 2.6.6``, ``loop`` …"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Static facts for the report: packages, accelerator, precision, budget."""


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


def _plain(value: Any, redacted: dict[str, str]) -> Any:
    """Return a value as JSON has it; stacks name the same functions again and again, so each text is redacted once."""
    if value is None or type(value) in (int, bool):
        return value
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, redacted) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, redacted) for v in value]
    if isinstance(value, str):
        if value not in redacted:
            redacted[value] = redact(value)
        return redacted[value]
    if is_dataclass(value):
        return {name: _plain(getattr(value, name), redacted) for name in _field_names(type(value))}
    return value


def _field_names(cls: type[Any]) -> dict[str, None]:
    return _FIELD_NAMES.get(cls) or _FIELD_NAMES.setdefault(cls, dict.fromkeys(one.name for one in fields(cls)))


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
    content = {k: v for k, v in _plain(record, {}).items() if v is not None}
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
        if cls is records.CodeLook:
            for spots in _SPOTS:
                content[spots] = tuple(_spot(spot) for spot in content.get(spots, ()))
            content["items"] = tuple(_build(records.CodeItem, item) for item in content.get("items", ()))
            content["stacks"] = tuple(_stack(stack) for stack in content.get("stacks", ()))
        if cls is records.Arrivals:
            content |= {name: tuple(content[name]) for name in ("sequence", "began_us", "took_us", "sent_bytes")}
        if cls is records.GpuSample and content.get("throttle_reasons") is not None:
            content["throttle_reasons"] = tuple(content["throttle_reasons"])
        return _build(cls, content)  # type: ignore[no-any-return]
    except (TypeError, LookupError, AttributeError) as exc:
        raise ValueError(f"not a {parsed[0]} record: {line[:80]!r}") from exc


def encode_header(header: Header) -> str:
    """Return the first line of a part, without the newline."""
    return json.dumps(["header", {**_plain(header, {}), "columns": _COLUMNS}], separators=(",", ":"))


def decode_header(line: bytes) -> tuple[Header, Mapping[str, list[str]]]:
    """Return the header of a part's first line, and the columns of the kinds that are written without names.

    Raises:
        ValueError: The line is no header.
    """
    try:
        kind, content = json.loads(line)
        if kind != "header" or not isinstance(content, dict):
            raise ValueError(kind)
        header, columns = _build(Header, content), content.get("columns", _COLUMNS)
    except TypeError as exc:
        raise ValueError(str(exc)) from exc
    numbers = (header.schema, header.rank, header.world_size, header.pid)
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError(f"schema, rank, world_size and pid are {numbers}")
    if type(header.started_s) not in (int, float) or not 0 <= header.started_s < 2**53:
        raise ValueError(f"started_s is {header.started_s!r}")
    return header, columns


def _build(cls: type[Any], content: Mapping[str, Any]) -> Any:
    known = _field_names(cls)
    if not content.keys() <= known.keys():  # written by a newer version
        content = {k: v for k, v in content.items() if k in known}
    return cls(**content)


def _spot(content: Mapping[str, Any]) -> records.CodeSpot:
    spot = {**content, "calls": tuple(content.get("calls", ()))}
    return _build(records.CodeSpot, spot)  # type: ignore[no-any-return]


def _stack(content: Mapping[str, Any]) -> records.CodeStack:
    stack = {**content, "frames": tuple(content["frames"]), "own": tuple(content.get("own", ()))}
    return _build(records.CodeStack, stack)  # type: ignore[no-any-return]


def _diagnosis(content: Mapping[str, Any]) -> Diagnosis:
    location = content.get("location")
    return _build(  # type: ignore[no-any-return]
        Diagnosis,
        {
            **content,
            "severity": Severity(content["severity"]),
            "evidence": tuple(_build(Evidence, e) for e in content.get("evidence", ())),
            "advice": tuple(map(_advice, content.get("advice", ()))),
            "location": location and _build(Location, location),
            "supersedes": tuple(content.get("supersedes", ())),
            "ranks": tuple(content.get("ranks", ())),
        },
    )


def _advice(content: Mapping[str, Any]) -> Advice:
    interval = content.get("gain_interval_pct")
    return _build(Advice, {**content, "gain_interval_pct": interval and tuple(interval)})  # type: ignore[no-any-return]


def _verdict(content: Mapping[str, Any]) -> Verdict:
    primary, workers, second = (content.get(name) for name in ("primary", "num_workers", "runner_up"))
    return Verdict(
        primary=_diagnosis(primary) if primary else None,
        diagnoses=tuple(_diagnosis(d) for d in content.get("diagnoses", ())),
        abstained=tuple(Abstention(a["rule"], tuple(a["missing"])) for a in content.get("abstained", ())),
        num_workers=_build(WorkerAdvice, workers) if workers else None,
        runner_up=_diagnosis(second) if second else None,
    )


assert all(is_dataclass(cls) for cls in _KINDS.values())
