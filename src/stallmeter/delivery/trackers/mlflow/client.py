"""A database or folder, through MLflow's client."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .below import errors_below
from .step_traces import StepTrace
from .store import OUR_EXPERIMENT, Metric, RefusedError, Run, TrackingStore, deleted_experiment, translated
from .traces import log_traces


def open_client(uri: str) -> TrackingStore:
    """Return what MLflow's client reaches.

    Raises:
        TrackerError: It is a folder, and this MLflow does not take one.
    """
    store = _ClientStore(uri)
    if uri.startswith("file:") or "://" not in uri:
        store.open()  # costs nothing for a folder, and shows now whether this MLflow still takes one
    return store


class _ClientStore:
    """A database or folder, through MLflow's client. It is made at the first use, in the forwarder's thread."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._client: Any = None

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

    def delete_tag(self, run_id: str, key: str) -> None:
        self._do(lambda client: client.delete_tag(run_id, key))

    def run(self, run_id: str) -> Run:
        run = self._do(lambda client: client.get_run(run_id))
        return Run(
            id=run_id,
            experiment_id=str(run.info.experiment_id),
            artifact_uri=str(run.info.artifact_uri),
            deleted=run.info.lifecycle_stage == "deleted",
            tags=dict(run.data.tags),
        )

    def experiment(self, name: str, artifact_location: str | None = None) -> str:
        found = self._do(lambda client: client.get_experiment_by_name(name))
        if found is None:
            try:
                return str(self._do(lambda c: c.create_experiment(name, artifact_location, dict(OUR_EXPERIMENT))))
            except RefusedError as exc:
                if exc.code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._do(lambda client: client.get_experiment_by_name(name))
        if found.lifecycle_stage == "deleted":
            raise deleted_experiment(name)
        return str(found.experiment_id)

    def create_run(self, experiment_id: str, name: str | None) -> str:
        return str(self._do(lambda client: client.create_run(experiment_id, run_name=name)).info.run_id)

    def terminate(self, run_id: str, status: str) -> None:
        self._do(lambda client: client.set_terminated(run_id, status))

    def upload(self, run: Run, artifact: PurePosixPath, path: Path) -> None:
        self._do(lambda client: _log_artifact(client, run.id, artifact, path))

    def trace(self, run: Run, traces: Sequence[StepTrace]) -> None:
        self._do(lambda _: log_traces(self._uri, run, traces))

    def document(self, run: Run, artifact: PurePosixPath) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.redirect_stderr(io.StringIO()):  # MLflow draws a progress bar, for one small file too
                path = self._do(lambda client: client.download_artifacts(run.id, str(artifact), folder))
            return json.loads(Path(path).read_text(encoding="utf-8"))

    def _do(self, fn: Callable[[Any], Any]) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            if self._client is None:
                self._client = _client_of(self._uri)
            return fn(self._client)
        except (MlflowException, OSError, *errors_below()) as exc:
            raise translated(exc, self._uri) from None


def _client_of(uri: str) -> Any:
    from mlflow import MlflowClient

    try:
        return MlflowClient(uri)
    except ValueError:  # its text may be a part of the password
        scheme = uri.partition("://")[0]
        said = f"the tracking URI {scheme}://… cannot be read; write special characters of a password as %XX"
        raise RefusedError(said, "") from None


def _log_artifact(client: Any, run_id: str, artifact: PurePosixPath, path: Path) -> None:
    """Upload a file under another name than it has on disk."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, artifact.name)
        shutil.copyfile(path, copy)
        client.log_artifact(run_id, str(copy), str(artifact.parent))
