"""A tracking server, asked through MLflow's own request function."""

from __future__ import annotations

import inspect
import mimetypes
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from ....errors import TrackerError, TrackerUnavailableError
from ....records.redaction import without_secrets
from ...messages import client_message
from .client import open_client
from .step_traces import StepTrace
from .store import (
    BAD_VALUE,
    INTERNAL,
    OUR_EXPERIMENT,
    CollisionError,
    FailedError,
    Metric,
    RefusedError,
    Run,
    TrackingStore,
    deleted_experiment,
    is_database_trouble,
    is_value_refused,
    translated,
)
from .uri import PROXIED


def open_server(uri: str, timeout_s: tuple[float, float]) -> TrackingStore:
    """Return a tracking server; through MLflow's client when this version's requests cannot be bounded."""
    requests = _bounded_requests()
    return open_client(uri) if requests is None else _ServerStore(uri, *requests, timeout_s)


class _ServerStore:
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
        self._worked = False
        self._is_mlflow = False

    def log(self, run_id: str, metrics: Sequence[Metric], tags: Mapping[str, str]) -> None:
        content: dict[str, Any] = {"run_id": run_id, "metrics": list(metrics)}
        content["tags"] = [{"key": k, "value": v} for k, v in tags.items()]
        self._call("POST", "runs/log-batch", json=content)

    def delete_tag(self, run_id: str, key: str) -> None:
        self._call("POST", "runs/delete-tag", json={"run_id": run_id, "key": key})

    def run(self, run_id: str) -> Run:
        run = self._part(self._call("GET", "runs/get", params={"run_id": run_id}), "run")
        info = self._part(run, "info")
        return Run(
            id=run_id,
            experiment_id=str(info.get("experiment_id", "")),
            artifact_uri=str(info.get("artifact_uri", "")),
            deleted=info.get("lifecycle_stage") == "deleted",
            tags={t["key"]: t.get("value", "") for t in run.get("data", {}).get("tags", ())},
        )

    def experiment(self, name: str, artifact_location: str | None = None) -> str:
        found = self._experiment(name)
        if found is None:
            content = {"name": name, "tags": [{"key": key, "value": value} for key, value in OUR_EXPERIMENT.items()]}
            if artifact_location is not None:
                content["artifact_location"] = artifact_location
            try:
                return self._id(self._call("POST", "experiments/create", json=content), "experiment_id")
            except RefusedError as exc:
                if exc.code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._experiment(name)  # somebody else made it in between
        if found is None or found.get("lifecycle_stage") == "deleted":
            raise deleted_experiment(name)
        return self._id(found, "experiment_id")

    def create_run(self, experiment_id: str, name: str | None) -> str:
        content = {"experiment_id": experiment_id, "start_time": round(time.time() * 1000)}
        if name is not None:
            content["run_name"] = name
        run = self._part(self._call("POST", "runs/create", json=content), "run")
        return self._id(self._part(run, "info"), "run_id")

    def terminate(self, run_id: str, status: str) -> None:
        content = {"run_id": run_id, "status": status, "end_time": round(time.time() * 1000)}
        self._call("POST", "runs/update", json=content)

    def upload(self, run: Run, artifact: PurePosixPath, path: Path) -> None:
        folder = PROXIED.match(run.artifact_uri)
        if folder is None:  # the server leaves it to us to reach its store of artifacts
            open_client(self._uri).upload(run, artifact, path)
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

    def trace(self, run: Run, traces: Sequence[StepTrace]) -> None:
        open_client(self._uri).trace(run, traces)

    def document(self, run: Run, artifact: PurePosixPath) -> Any:
        folder = PROXIED.match(run.artifact_uri)
        if folder is None:
            return open_client(self._uri).document(run, artifact)
        return self._ask("GET", f"/api/2.0/mlflow-artifacts/artifacts/{quote(f'{folder[1]}/{artifact}')}")

    def _experiment(self, name: str) -> dict[str, Any] | None:
        try:
            found = self._call("GET", "experiments/get-by-name", params={"experiment_name": name})
        except RefusedError as exc:
            if exc.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return self._part(found, "experiment")

    def _part(self, answer: dict[str, Any], name: str) -> dict[str, Any]:
        found = answer.get(name)
        if not isinstance(found, dict):
            raise self._not_mlflow(name)
        self._is_mlflow = True
        return found

    def _id(self, answer: dict[str, Any], name: str) -> str:
        found = answer.get(name)
        if not isinstance(found, (str, int)):
            raise self._not_mlflow(name)
        return str(found)

    def _not_mlflow(self, lacks: str) -> TrackerError | TrackerUnavailableError:
        message = f"{without_secrets(self._uri)} answered without {lacks!r}"
        if self._is_mlflow:  # something that stands before it has answered
            return TrackerUnavailableError(message)
        return TrackerError(f"{message}. Is this the address of an MLflow server?")

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
            raise translated(exc, self._uri) from None
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
        said = client_message(answer.get("message", "") if ours else response.text[:120], self._uri)
        answered = " ".join(filter(None, (str(status), code)))
        message = ": ".join(filter(None, (f"{without_secrets(self._uri)} answered {answered}", said)))
        if is_database_trouble(code, answer.get("message")):
            raise CollisionError(message)
        if is_value_refused(code, answer.get("message")):
            raise RefusedError(message, BAD_VALUE)
        if code == INTERNAL:
            raise FailedError(message)
        if status in (408, 429) or status >= 500:
            raise TrackerUnavailableError(message)
        if not ours and status not in (401, 403):
            # Not MLflow: a wrong address or a login page, unless this address has answered as MLflow before.
            if self._worked:
                raise TrackerUnavailableError(message)
            raise TrackerError(f"{message}. Is this the address of an MLflow server?")
        if status in (401, 403):
            message += ". Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        raise RefusedError(message, code)


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
