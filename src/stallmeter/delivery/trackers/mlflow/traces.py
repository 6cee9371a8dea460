"""Slow steps as traces of a run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ....errors import SettingError, TrackerError
from ....window.steps import SLOW_STEPS
from .step_traces import ORDER, StepTrace
from .store import Run


def check_traces(traces: int) -> None:
    """Refuse a number of traces that cannot be had.

    Raises:
        SettingError: It is out of range.
        TrackerError: The installed MLflow cannot take traces of steps.
    """
    if not isinstance(traces, int) or not 0 <= traces <= SLOW_STEPS:
        raise SettingError(f"traces is {traces!r}; give a number of steps from 0 to {SLOW_STEPS}")
    if traces:
        from mlflow.version import VERSION

        try:
            from mlflow.tracing.client import TracingClient
        except ImportError:
            able = False
        else:
            able = {"start_trace", "log_spans"} <= set(dir(TracingClient))
        if not able:
            raise TrackerError(f"MLflow {VERSION} cannot take traces of steps; upgrade mlflow or leave out traces=")


def log_traces(uri: str, run: Run, traces: Sequence[StepTrace]) -> None:
    """Make a trace of each step. MLflow's own way to begin a trace knows the process's tracking URI only, not ours."""
    from mlflow.entities import Span, TraceData, TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.client import TracingClient

    client = TracingClient(uri)
    for trace in traces:
        # The same id each time, so that a second sending leaves one copy.
        key = hashlib.sha256(f"stallmeter {run.id} {trace.step}".encode()).digest()
        trace_id = f"tr-{key[:16].hex()}"
        spans = [Span.from_dict(content) for content in _spans(trace, trace_id, key)]
        info = client.start_trace(
            TraceInfo(
                trace_id=trace_id,
                trace_location=TraceLocation.from_experiment_id(run.experiment_id),
                request_time=trace.start_ns // 1_000_000,
                execution_duration=(trace.end_ns - trace.start_ns) // 1_000_000,
                state=TraceState.OK,
                request_preview=_in_words(trace),
                trace_metadata={"mlflow.sourceRun": run.id, "mlflow.trace_schema.version": "3"},
                tags={"mlflow.traceName": trace.title},
            )
        )
        try:
            client.log_spans(run.experiment_id, spans)
        except NotImplementedError:  # servers before MLflow 3.4 keep spans among the artifacts
            client._upload_trace_data(info, TraceData(spans=spans))


def _spans(trace: StepTrace, trace_id: str, key: bytes) -> list[dict[str, Any]]:
    """Return the step and its parts in the form in which MLflow writes spans; ids are base64, attributes are JSON."""

    def encoded(content: bytes) -> str:
        return base64.b64encode(content).decode()

    def span(number: int, name: str, start_ns: int, end_ns: int, **attributes: object) -> dict[str, Any]:
        named = {"mlflow.traceRequestId": trace_id, "mlflow.spanType": "UNKNOWN", **attributes}
        return {
            "trace_id": encoded(key[:16]),
            "span_id": encoded(key[16:23] + bytes([number + 1])),
            "parent_span_id": encoded(key[16:23] + bytes([1])) if number else None,
            "name": name,
            "start_time_unix_nano": start_ns,
            "end_time_unix_nano": end_ns,
            "events": [],
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": {name: json.dumps(value) for name, value in named.items()},
        }

    root = span(0, trace.title, trace.start_ns, trace.end_ns, step=trace.step, note=ORDER)
    return [root, *(span(i, p.name, p.start_ns, p.end_ns) for i, p in enumerate(trace.parts, 1))]


def _in_words(trace: StepTrace) -> str:
    longest = sorted(trace.parts, key=lambda part: part.start_ns - part.end_ns)[:3]
    parts = ", ".join(f"{p.name} {(p.end_ns - p.start_ns) / 1e6:.4g} ms" for p in longest)
    return f"{trace.title}, {(trace.end_ns - trace.start_ns) / 1e6:.4g} ms: {parts}"
