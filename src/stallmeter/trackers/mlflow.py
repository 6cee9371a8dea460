"""Forwards to a run of MLflow: metrics, searchable tags, our section of the run's description, and files.

MLflow's client retries a dead server for minutes (measured: 246 s when it refuses, 1,207 s when it does not answer),
and its limits can only be changed for the whole process. So a server is asked through MLflow's own request function,
which knows the user's credentials, once and with a timeout. Databases have no such timeout and go through the client.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
import inspect
import io
import json
import logging
import mimetypes
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import quote, unquote

from ..errors import MissingPackageError, SettingError, TrackerError, TrackerUnavailableError
from ..interfaces import Page, Point
from ..report.exemplars import ORDER, Exemplar, exemplars
from ..window import SLOW_STEPS

T = TypeVar("T")
Metric = dict[str, Any]

BEGIN, END = "<!-- stallmeter:begin -->", "<!-- stallmeter:end -->"
"""Around our section of the description: invisible on the page, so that the user's own text can be told apart."""

NOTE_TAG = "mlflow.note.content"
NOTE_CHARACTERS = (8000, 5000)
"""Longest description that servers take: today's, and those before MLflow 2.14."""

SAFE_REPLAY = 100
"""Points that every MLflow takes a second time; 2.10 drops the copies of more than that only if their keys are few."""

SECTION_BYTES = 4000
TAG_CHARACTERS = 500
MESSAGE_CHARACTERS = 300

_PREFIX = {"steps": "stallmeter/", "hardware": "system/stallmeter/"}
_SECTION = re.compile(f"{re.escape(BEGIN)}(?:(?!{re.escape(BEGIN)}).)*?{re.escape(END)}", re.DOTALL)
_USERINFO = re.compile(r"//[^/\s]*@")
_PROXIED = re.compile("mlflow-artifacts:/(?!/)(.*)")
_REFUSALS = frozenset(
    {
        "BAD_REQUEST",
        "CUSTOMER_UNAUTHORIZED",
        "ENDPOINT_NOT_FOUND",
        "FEATURE_DISABLED",
        "INVALID_PARAMETER_VALUE",
        "NOT_IMPLEMENTED",
        "PERMISSION_DENIED",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
        "UNAUTHENTICATED",
    }
)
_log = logging.getLogger("stallmeter")


class _RefusedError(TrackerError):
    """MLflow said no, with its error code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class _CollisionError(TrackerUnavailableError):
    """The database holds, or is just being given, points that were sent again."""


@dataclass(frozen=True, slots=True)
class _Run:
    id: str
    experiment_id: str
    artifact_uri: str
    deleted: bool
    tags: Mapping[str, str]


class _Store(Protocol):
    """The few things asked of MLflow. Each raises TrackerUnavailableError or TrackerError."""

    def log(self, run_id: str, metrics: Sequence[Metric], tags: Mapping[str, str]) -> None: ...

    def run(self, run_id: str) -> _Run: ...

    def experiment(self, name: str) -> str: ...

    def create_run(self, experiment_id: str, name: str | None) -> str: ...

    def terminate(self, run_id: str, status: str) -> None: ...

    def upload(self, run: _Run, artifact: PurePosixPath, path: Path) -> None: ...

    def trace(self, run: _Run, examples: Sequence[Exemplar]) -> None: ...

    def document(self, run: _Run, artifact: PurePosixPath) -> Any: ...


class MlflowTracker:
    """Forwards to one run of MLflow, which somebody else started unless it was made by `create_run`.

    Step metrics go below ``stallmeter/``, hardware below ``system/stallmeter/``, which puts them on the run's *System
    metrics* tab. Nothing of the process is changed: no environment variable, no global tracking URI, no active run.

    Args:
        tracking_uri: Where the run is, for example ``http://localhost:5000`` or ``sqlite:///mlflow.db``.
        run_id: The run.
        owns_run: True to end the run in `close`.
        timeout_s: Most seconds to connect and to wait for an answer of a server.
        upload_s: Most seconds that `show` waits for files to be uploaded.
        traces: How many of the slowest steps become traces of the run when it ends, 0 to 10.

    Raises:
        MissingPackageError: MLflow is not installed.
        SettingError: ``traces`` is out of range.
        TrackerError: The tracking URI is one that the installed MLflow refuses, or it is too old for ``traces``.
    """

    name = "mlflow"
    batch_size = 500

    def __init__(
        self,
        tracking_uri: str,
        run_id: str,
        *,
        owns_run: bool = False,
        timeout_s: tuple[float, float] = (2.0, 5.0),
        upload_s: float = 5.0,
        traces: int = 0,
    ) -> None:
        _require_mlflow()
        _check_traces(traces)
        self._traces = traces
        self.run_id = run_id
        self.tracking_uri = tracking_uri
        self.destination = f"{_address(tracking_uri)} run {run_id}"
        self.end_status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED"
        """What `close` says of a run that we own."""
        self.owns_run = owns_run
        """True until `close` has ended a run that we started."""
        self._upload_s = upload_s
        self._store = _open_store(tracking_uri, timeout_s)
        self._refused: set[str] = set()
        self._upload: _Upload | None = None
        self._uploaded: Page | None = None

    @classmethod
    def from_logger(cls, logger: object, *, traces: int = 0) -> MlflowTracker | None:
        """Return a tracker for the run of Lightning's ``MLFlowLogger``.

        Args:
            logger: Any logger.
            traces: As for the tracker itself.

        Returns:
            None when it is another logger, or on a rank that logs nothing.
        """
        names = {(c.__module__.partition(".")[0], c.__name__) for c in type(logger).__mro__}
        if not names & {("lightning", "MLFlowLogger"), ("pytorch_lightning", "MLFlowLogger")}:
            return None
        mlflow_logger: Any = logger
        client = mlflow_logger.experiment
        if type(client).__name__.endswith("DummyExperiment") or mlflow_logger.run_id is None:
            return None
        uri = getattr(client, "tracking_uri", None) or mlflow_logger._tracking_uri
        return cls(str(uri), str(mlflow_logger.run_id), traces=traces)

    @classmethod
    def from_active_run(cls, *, traces: int = 0) -> MlflowTracker | None:
        """Return a tracker for ``mlflow.active_run()``. Active runs belong to a thread: call it in the main one.

        Args:
            traces: As for the tracker itself.

        Returns:
            None when there is none or when nobody has imported mlflow.
        """
        mlflow: Any = sys.modules.get("mlflow")
        active_run = getattr(mlflow, "active_run", None)
        run = active_run() if active_run is not None else None
        return None if run is None else cls(mlflow.get_tracking_uri(), run.info.run_id, traces=traces)

    @classmethod
    def from_environment(cls) -> MlflowTracker | None:
        """Return a tracker for the run that ``MLFLOW_RUN_ID`` names.

        Returns:
            None when the variable is not set.

        Raises:
            MissingPackageError: It is set and MLflow is not installed.
        """
        run_id = os.environ.get("MLFLOW_RUN_ID")
        return cls(_default_uri(), run_id) if run_id else None

    @classmethod
    def create_run(
        cls,
        tracking_uri: str | None = None,
        experiment: str = "Default",
        *,
        run_name: str | None = None,
        traces: int = 0,
    ) -> MlflowTracker:
        """Start a run; `close` ends it.

        Args:
            tracking_uri: None for the one that MLflow is set up with.
            experiment: Name of the experiment; made when missing.
            run_name: None for a name that MLflow invents.
            traces: As for the tracker itself.

        Raises:
            MissingPackageError: MLflow is not installed.
            TrackerUnavailableError: MLflow does not answer.
            TrackerError: MLflow refuses.
        """
        uri = tracking_uri or _default_uri()
        tracker = cls(uri, "", owns_run=True, traces=traces)
        tracker.run_id = tracker._store.create_run(tracker._store.experiment(experiment), run_name)
        tracker.destination += tracker.run_id
        return tracker

    def send(self, points: Sequence[Point]) -> None:
        """Log points under their original time, which makes a second sending leave one copy. Raises as `Tracker.send`.

        A point that MLflow rejects is left out with a warning; the others of its batch are delivered.
        """
        self._log_or_split([_metric(point) for point in points], first=True)

    def show(self, page: Page) -> None:
        """Set tags, replace our section of the description and, on the final page, upload files. Raises as `send`."""
        run = self._living_run()
        files = {name: path for name, path in page.files.items() if path.is_file()} if page.final else {}
        if files and self._only_through_server(run):
            files = {}
        there = page == self._uploaded or not files
        # Straight after the reading, so that no edit of the user falls in between. Links only once the files are there.
        self._write_note(run, self._linked(run, page.note, files) if there else page.note)
        tags = {_tag_key(k): v[:TAG_CHARACTERS] for k, v in page.tags.items()}
        news = {k: v for k, v in tags.items() if run.tags.get(k) != v}
        if news:
            self._store.log(self.run_id, [], news)
        if not there:
            self._upload_files(run, page, files)
            run = self._living_run()
            self._write_note(run, self._linked(run, page.note, files))

    def close(self) -> None:
        """End the run if we started it."""
        if self.owns_run:
            self._store.terminate(self.run_id, self.end_status)
            self.owns_run = False

    def _only_through_server(self, run: _Run) -> bool:
        """Whether the run's files are kept by a server that we were told to go round; says so."""
        if not _PROXIED.match(run.artifact_uri) or self.tracking_uri.startswith(("http://", "https://")):
            return False
        _log.warning(
            "stallmeter: the report's files are not uploaded to %s: this run keeps its files behind a server; "
            "to have them there, pass the server's address as tracking URI",
            self.destination,
        )
        return True

    def _living_run(self) -> _Run:
        run = self._store.run(self.run_id)
        if run.deleted:
            raise TrackerError(f"the run {self.run_id} has been deleted; restore it to have the rest delivered")
        return run

    def _log_or_split(self, metrics: Sequence[Metric], *, first: bool = False) -> None:
        try:
            self._store.log(self.run_id, metrics, {})
        except _CollisionError:
            if len(metrics) <= SAFE_REPLAY:
                raise
            for start in range(0, len(metrics), SAFE_REPLAY):
                self._log_or_split(metrics[start : start + SAFE_REPLAY], first=first)
        except _RefusedError as exc:
            if exc.code != "INVALID_PARAMETER_VALUE":
                raise
            if first:
                self._living_run()  # a deleted run rejects with the same code, and no point is to blame for that
            self._split(metrics, exc)

    def _split(self, metrics: Sequence[Metric], refusal: _RefusedError) -> None:
        if len(metrics) == 1:
            self._leave_out(metrics[0], refusal)
            return
        middle = len(metrics) // 2
        self._log_or_split(metrics[:middle])
        self._log_or_split(metrics[middle:])

    def _leave_out(self, metric: Metric, refusal: _RefusedError) -> None:
        key = metric["key"]
        if key not in self._refused:
            self._refused.add(key)
            _log.warning("MLflow rejected a point of %r, which is left out there: %s", key, refusal)

    def _write_note(self, run: _Run, section: str) -> None:
        old = run.tags.get(NOTE_TAG, "")
        for limit in NOTE_CHARACTERS:
            new = merge_note(old, section, limit)
            if new == old:
                return
            try:
                self._store.log(self.run_id, [], {NOTE_TAG: new})
            except _RefusedError as exc:
                if exc.code != "INVALID_PARAMETER_VALUE":
                    raise
            else:
                return
        _log.warning("MLflow took no description for the run %s; the verdict is in its tags", self.run_id)

    def _linked(self, run: _Run, note: str, files: Mapping[str, Path]) -> str:
        """Add what only MLflow can show: a link to the report in the first line and charts below."""
        first, newline, rest = note.partition("\n")
        if report := next((name for name in ("report.html", "report.md") if name in files), None):
            artifacts = f"#/experiments/{run.experiment_id}/runs/{self.run_id}/artifacts"
            first += f" [Full report]({artifacts}/stallmeter/{report})"
        charts = "".join(
            f"\n\n![{PurePosixPath(name).stem}](get-artifact?path={quote('stallmeter/' + name)}&run_uuid={self.run_id})"
            for name in files
            if name.endswith((".png", ".svg"))
        )
        room = SECTION_BYTES - len(charts.encode()) - len(f"{first}{newline}".encode())
        return first + newline + _cut(rest, max(0, room)).rstrip() + charts

    def _upload_files(self, run: _Run, page: Page, files: Mapping[str, Path]) -> None:
        def upload() -> None:
            for name, path in files.items():
                self._store.upload(run, PurePosixPath("stallmeter", name), path)
            self._log_traces(run, page)

        current = self._upload
        if current is None or current.page != page or current.error is not None:
            current = self._upload = _Upload(page, upload)
        if not current.wait(self._upload_s):
            raise TrackerUnavailableError(f"files are still being uploaded to {self.destination}")
        self._upload, self._uploaded = None, page

    def _log_traces(self, run: _Run, page: Page) -> None:
        if not self._traces:
            return
        try:
            self._store.trace(run, exemplars(page.slow_steps[: self._traces]))
        except TrackerError as exc:  # the page is worth more than its traces
            _log.warning("MLflow took no traces of slow steps: %s", exc)


def read_document(tracking_uri: str, run_id: str, artifact: str) -> Any:
    """Return a JSON file among a run's artifacts, read.

    Args:
        tracking_uri: Where the run is.
        run_id: The run.
        artifact: Path of the file among the run's artifacts, for example ``stallmeter/diagnosis.json``.

    Raises:
        MissingPackageError: MLflow is not installed.
        TrackerUnavailableError: MLflow does not answer.
        TrackerError: There is no such run, it has no such file, or the file is no JSON.
    """
    tracker = MlflowTracker(tracking_uri, run_id)
    run = tracker._living_run()
    try:
        return tracker._store.document(run, PurePosixPath(artifact))
    except (TrackerError, ValueError) as exc:
        raise TrackerError(f"the run {run_id} has no readable {artifact}: {exc}") from None


def merge_note(old: str, section: str, limit: int = NOTE_CHARACTERS[0]) -> str:
    """Put our section into a run's description and keep everything else.

    Args:
        old: The description as it is.
        section: Markdown; cut to 4,000 bytes and to what the user's text leaves.
        limit: Most characters of the whole.

    Returns:
        The new description; ``old`` when there is no room.
    """
    match = _SECTION.search(old)
    before, after = (old[: match.start()], old[match.end() :]) if match else (old, "")
    if before and not match:
        before = before.rstrip() + "\n\n"
    frame = len(f"{BEGIN}\n\n\n\n{END}")
    text = _cut(section.strip(), SECTION_BYTES, limit - len(before) - len(after) - frame)
    # Blank lines keep the markers from becoming part of a list or table.
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}" if text else old


def _cut(text: str, most_bytes: int, most_characters: int | None = None) -> str:
    """Keep whole lines from the start of a Markdown text."""
    most_characters = len(text) if most_characters is None else most_characters
    if len(text.encode()) <= most_bytes and len(text) <= most_characters:
        return text
    kept: list[str] = []
    room_bytes, room = most_bytes - 8, most_characters - 8  # for a closing fence and the dots
    for line in text.splitlines():
        room_bytes, room = room_bytes - len(line.encode()) - 1, room - len(line) - 1
        if room_bytes < 0 or room < 0:
            break
        kept.append(line)
    if sum(line.lstrip().startswith("```") for line in kept) % 2:
        kept.append("```")
    return "\n".join([*kept, "…"]) if kept else ""


def _metric(point: Point) -> Metric:
    return {
        "key": _PREFIX[point.group] + point.key,
        "value": point.value,
        "timestamp": round(point.time_s * 1000),
        "step": point.step,
    }


def _tag_key(key: str) -> str:
    return key if key.startswith("stallmeter.") else f"stallmeter.{key}"


def _require_mlflow() -> None:
    if importlib.util.find_spec("mlflow") is None:
        raise MissingPackageError("mlflow", "mlflow", "Forwarding to MLflow")


def _check_traces(traces: int) -> None:
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


def _default_uri() -> str:
    _require_mlflow()
    import mlflow

    return str(mlflow.get_tracking_uri())


def _address(uri: str) -> str:
    """Return a URI by which a later program can find the store: the same in every folder, and without secrets.

    A database cannot be reached without what is left out, so there ``***`` marks the place.
    """
    if uri.startswith(("http://", "https://")):
        return _without_secrets(uri)
    address, asked, _ = _absolute(uri).partition("?")
    scheme, found, rest = address.partition("://")
    user, known, _ = rest.partition("/")[0].rpartition("@")
    if known:
        rest = ("***" if ":" in user else user) + "@" + rest[len(user) + 1 :]
    return f"{scheme}{found}{rest}{'?***' if asked else ''}"


def _absolute(uri: str) -> str:
    """Return a URI that means the same in every folder."""
    scheme, found, path = uri.partition(":///")
    if found and scheme.partition("+")[0] == "sqlite" and path[:1] not in ("", "/", ":"):
        return f"{scheme}:////{str(Path(path).absolute()).lstrip('/')}"
    if "://" not in uri and not uri.startswith(("databricks", "uc:", "file:/")):
        return Path(uri.removeprefix("file:")).absolute().as_uri()
    return uri


def _without_secrets(uri: str) -> str:
    return _USERINFO.sub("//", uri).partition("?")[0]


@dataclass(frozen=True, slots=True)
class _Scrubber:
    """Takes a tracking URI's secrets out of messages."""

    uri: str

    def __call__(self, message: object) -> str:
        text = str(message).replace(self.uri, _without_secrets(self.uri))
        userinfo = self.uri.partition("://")[2].partition("/")[0].rpartition("@")[0]
        password = userinfo.partition(":")[2]
        for secret in {password, unquote(password)}:
            if len(secret) > 2:
                text = text.replace(secret, "***")
        return " ".join(_USERINFO.sub("//", text).split())[:MESSAGE_CHARACTERS]


def _open_store(uri: str, timeout_s: tuple[float, float]) -> _Store:
    if uri.startswith(("http://", "https://")):
        requests = _bounded_requests()
        return _Client(uri) if requests is None else _Server(uri, *requests, timeout_s)
    store = _Client(uri)
    if uri.startswith("file:") or "://" not in uri:
        store.open()  # costs nothing for a folder, and shows now whether this MLflow still takes one
    return store


def _bounded_requests() -> tuple[Callable[..., Any], Callable[[str], Any]] | None:
    """Return MLflow's functions for a request and for credentials; None when this version has others.

    They are not public API, but they alone know every way in which a user may have set up credentials.
    """
    try:
        from mlflow.utils.rest_utils import http_request
    except ImportError:
        return None
    if not {"max_retries", "timeout", "raise_on_status"} <= set(inspect.signature(http_request).parameters):
        return None
    try:
        from mlflow.utils.credentials import get_default_host_creds
    except ImportError:
        try:  # before MLflow 2.13
            from mlflow.tracking._model_registry.utils import get_default_host_creds
        except ImportError:
            return None
    return http_request, get_default_host_creds


class _Server:
    """A tracking server: every request is made once and ends within the timeout."""

    def __init__(
        self,
        uri: str,
        request: Callable[..., Any],
        credentials: Callable[[str], Any],
        timeout_s: tuple[float, float],
    ) -> None:
        self._uri = uri
        self._request = request
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._scrub = _Scrubber(uri)
        self._worked = False

    def log(self, run_id: str, metrics: Sequence[Metric], tags: Mapping[str, str]) -> None:
        content: dict[str, Any] = {"run_id": run_id, "metrics": list(metrics)}
        content["tags"] = [{"key": k, "value": v} for k, v in tags.items()]
        self._call("POST", "runs/log-batch", json=content)

    def run(self, run_id: str) -> _Run:
        run = self._call("GET", "runs/get", params={"run_id": run_id})["run"]
        info = run["info"]
        return _Run(
            id=run_id,
            experiment_id=str(info["experiment_id"]),
            artifact_uri=str(info.get("artifact_uri", "")),
            deleted=info.get("lifecycle_stage") == "deleted",
            tags={t["key"]: t.get("value", "") for t in run.get("data", {}).get("tags", ())},
        )

    def experiment(self, name: str) -> str:
        found = self._experiment(name)
        if found is None:
            try:
                return str(self._call("POST", "experiments/create", json={"name": name})["experiment_id"])
            except _RefusedError as exc:
                if exc.code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._experiment(name)  # somebody else made it in between
        if found is None or found.get("lifecycle_stage") == "deleted":
            raise _deleted_experiment(name)
        return str(found["experiment_id"])

    def create_run(self, experiment_id: str, name: str | None) -> str:
        content = {"experiment_id": experiment_id, "start_time": round(time.time() * 1000)}
        if name is not None:
            content["run_name"] = name
        return str(self._call("POST", "runs/create", json=content)["run"]["info"]["run_id"])

    def terminate(self, run_id: str, status: str) -> None:
        content = {"run_id": run_id, "status": status, "end_time": round(time.time() * 1000)}
        self._call("POST", "runs/update", json=content)

    def upload(self, run: _Run, artifact: PurePosixPath, path: Path) -> None:
        folder = _PROXIED.match(run.artifact_uri)
        if folder is None:  # the server leaves it to us to reach its store of artifacts
            _Client(self._uri).upload(run, artifact, path)
            return
        # The client of MLflow < 3 would look for the server under the global tracking URI.
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        with path.open("rb") as file:
            self._ask(
                "PUT",
                f"/api/2.0/mlflow-artifacts/artifacts/{quote(f'{folder[1]}/{artifact}')}",
                data=file,
                extra_headers={"Content-Type": kind},
            )

    def trace(self, run: _Run, examples: Sequence[Exemplar]) -> None:
        _Client(self._uri).trace(run, examples)

    def document(self, run: _Run, artifact: PurePosixPath) -> Any:
        folder = _PROXIED.match(run.artifact_uri)
        if folder is None:
            return _Client(self._uri).document(run, artifact)
        return self._ask("GET", f"/api/2.0/mlflow-artifacts/artifacts/{quote(f'{folder[1]}/{artifact}')}")

    def _experiment(self, name: str) -> dict[str, Any] | None:
        try:
            found = self._call("GET", "experiments/get-by-name", params={"experiment_name": name})
        except _RefusedError as exc:
            if exc.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return dict(found["experiment"])

    def _call(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        return self._ask(method, f"/api/2.0/mlflow/{path}", **content)

    def _ask(self, method: str, endpoint: str, **content: Any) -> dict[str, Any]:
        from mlflow.exceptions import MlflowException

        try:
            response = self._request(
                self._credentials(self._uri),
                endpoint,
                method,
                max_retries=0,
                timeout=self._timeout_s,
                raise_on_status=False,
                **content,
            )
        except (MlflowException, OSError) as exc:
            raise _translated(exc, self._scrub) from None
        return self._answer(response)

    def _answer(self, response: Any) -> dict[str, Any]:
        status = int(response.status_code)
        try:
            parsed = response.json() if response.text.strip() else {}
        except ValueError:
            parsed = None
        answer: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
        ours = isinstance(parsed, dict)
        if status in (200, 204) and ours:
            self._worked = True
            return answer
        code = str(answer.get("error_code", ""))
        said = self._scrub(answer.get("message", "") if ours else response.text[:120])
        answered = " ".join(filter(None, (str(status), code)))
        message = ": ".join(filter(None, (f"{_without_secrets(self._uri)} answered {answered}", said)))
        if _is_database_trouble(code, answer.get("message")):
            raise _CollisionError(message)
        if status in (408, 429) or status >= 500:
            raise TrackerUnavailableError(message)
        if not ours and status not in (401, 403):
            # Not MLflow: a wrong address or a login page, unless this address has answered as MLflow before.
            if self._worked:
                raise TrackerUnavailableError(message)
            raise TrackerError(f"{message}. Is this the address of an MLflow server?")
        if status in (401, 403):
            message += ". Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        raise _RefusedError(message, code)


class _Client:
    """A database or folder, through MLflow's client. It is made at the first use, in the forwarder's thread."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._client: Any = None
        self._scrub = _Scrubber(uri)

    def open(self) -> None:
        """Make the client.

        Raises:
            TrackerError: This MLflow does not take the URI.
        """
        self._do(lambda _: None)

    def log(self, run_id: str, metrics: Sequence[Metric], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Metric as MlflowMetric
        from mlflow.entities import RunTag

        values = [MlflowMetric(m["key"], m["value"], m["timestamp"], m["step"]) for m in metrics]
        pairs = [RunTag(k, v) for k, v in tags.items()]
        self._do(lambda client: client.log_batch(run_id, metrics=values, tags=pairs))

    def run(self, run_id: str) -> _Run:
        run = self._do(lambda client: client.get_run(run_id))
        return _Run(
            id=run_id,
            experiment_id=str(run.info.experiment_id),
            artifact_uri=str(run.info.artifact_uri),
            deleted=run.info.lifecycle_stage == "deleted",
            tags=dict(run.data.tags),
        )

    def experiment(self, name: str) -> str:
        found = self._do(lambda client: client.get_experiment_by_name(name))
        if found is None:
            try:
                return str(self._do(lambda client: client.create_experiment(name)))
            except _RefusedError as exc:
                if exc.code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._do(lambda client: client.get_experiment_by_name(name))
        if found.lifecycle_stage == "deleted":
            raise _deleted_experiment(name)
        return str(found.experiment_id)

    def create_run(self, experiment_id: str, name: str | None) -> str:
        return str(self._do(lambda client: client.create_run(experiment_id, run_name=name)).info.run_id)

    def terminate(self, run_id: str, status: str) -> None:
        self._do(lambda client: client.set_terminated(run_id, status))

    def upload(self, run: _Run, artifact: PurePosixPath, path: Path) -> None:
        self._do(lambda client: _log_artifact(client, run.id, artifact, path))

    def trace(self, run: _Run, examples: Sequence[Exemplar]) -> None:
        self._do(lambda _: _log_examples(self._uri, run, examples))

    def document(self, run: _Run, artifact: PurePosixPath) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.redirect_stderr(io.StringIO()):  # MLflow draws a progress bar, for one small file too
                path = self._do(lambda client: client.download_artifacts(run.id, str(artifact), folder))
            return json.loads(Path(path).read_text(encoding="utf-8"))

    def _do(self, fn: Callable[[Any], Any]) -> Any:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            if self._client is None:
                self._client = MlflowClient(self._uri)
            return fn(self._client)
        except (MlflowException, OSError, *_database_errors()) as exc:
            raise _translated(exc, self._scrub) from None


def _deleted_experiment(name: str) -> TrackerError:
    return TrackerError(f"the experiment {name!r} has been deleted; restore it or choose another name")


def _database_errors() -> tuple[type[BaseException], ...]:
    alchemy = sys.modules.get("sqlalchemy.exc")
    return () if alchemy is None else (alchemy.DBAPIError,)


def _translated(exc: BaseException, scrub: _Scrubber) -> TrackerError | TrackerUnavailableError:
    """Return our error for one of MLflow, a database, a network or a disk; without its context, which has secrets."""
    code = str(getattr(exc, "error_code", ""))
    status = getattr(getattr(exc, "response", None), "status_code", 0)
    message = scrub(exc) or type(exc).__name__
    if type(exc).__name__ == "UnsupportedModelRegistryStoreURIException":
        message = "mlflow-skinny only talks to servers; for a database install the whole package: pip install mlflow"
        return _RefusedError(message, code)
    if "filesystem tracking backend" in message:
        what = "this MLflow no longer writes runs to a folder"
        fix = 'pass tracking_uri="sqlite:///mlflow.db" or a server\'s address'
        return _RefusedError(f"{what}; {fix}. It said: {message}", code)
    if _is_database_trouble(code, exc):
        return _CollisionError(message)
    refused = code in _REFUSALS or (400 <= status < 500 and status not in (408, 429))
    return _RefusedError(message, code) if refused else TrackerUnavailableError(message)


def _is_database_trouble(code: str, message: object) -> bool:
    """Whether MLflow's bad request is its database's: mostly, an unanswered request of ours is still being written."""
    text = str(message)
    return code == "BAD_REQUEST" and ("sqlalche.me" in text or "[SQL:" in text) and "DataError" not in text


@dataclass(slots=True)
class _Upload:
    """Files on their way to a run, in a daemon thread: not every store of artifacts has a timeout that we can set."""

    page: Page
    upload: Callable[[], None]
    error: BaseException | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stallmeter-upload", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Return True when it is over.

        Raises:
            BaseException: What the upload raised.
        """
        self._thread.join(seconds)
        if self.error is not None:
            raise self.error
        return not self._thread.is_alive()

    def _run(self) -> None:
        with self:
            self.upload()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool:
        self.error = exc  # not lost: raised again by `wait`, in the thread that can report it
        return True


def _log_artifact(client: Any, run_id: str, artifact: PurePosixPath, path: Path) -> None:
    """Upload a file under another name than it has on disk."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, artifact.name)
        shutil.copyfile(path, copy)
        client.log_artifact(run_id, str(copy), str(artifact.parent))


def _log_examples(uri: str, run: _Run, examples: Sequence[Exemplar]) -> None:
    """Make a trace of each step. MLflow's own way to begin a trace knows the process's tracking URI only, not ours."""
    from mlflow.entities import Span, TraceData, TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.client import TracingClient

    client = TracingClient(uri)
    for example in examples:
        # The same id each time, so that a second sending leaves one copy.
        key = hashlib.sha256(f"stallmeter {run.id} {example.step}".encode()).digest()
        trace_id = f"tr-{key[:16].hex()}"
        spans = [Span.from_dict(content) for content in _spans(example, trace_id, key)]
        info = client.start_trace(
            TraceInfo(
                trace_id=trace_id,
                trace_location=TraceLocation.from_experiment_id(run.experiment_id),
                request_time=example.start_ns // 1_000_000,
                execution_duration=(example.end_ns - example.start_ns) // 1_000_000,
                state=TraceState.OK,
                request_preview=_in_words(example),
                trace_metadata={"mlflow.sourceRun": run.id, "mlflow.trace_schema.version": "3"},
                tags={"mlflow.traceName": example.title},
            )
        )
        try:
            client.log_spans(run.experiment_id, spans)
        except NotImplementedError:  # servers before MLflow 3.4 keep spans among the artifacts
            client._upload_trace_data(info, TraceData(spans=spans))


def _spans(example: Exemplar, trace_id: str, key: bytes) -> list[dict[str, Any]]:
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

    root = span(0, example.title, example.start_ns, example.end_ns, step=example.step, note=ORDER)
    return [root, *(span(i, p.name, p.start_ns, p.end_ns) for i, p in enumerate(example.parts, 1))]


def _in_words(example: Exemplar) -> str:
    longest = sorted(example.parts, key=lambda part: part.start_ns - part.end_ns)[:3]
    parts = ", ".join(f"{p.name} {(p.end_ns - p.start_ns) / 1e6:.4g} ms" for p in longest)
    return f"{example.title}, {(example.end_ns - example.start_ns) / 1e6:.4g} ms: {parts}"
