"""The tracker, and reading back what is on a run."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from ....errors import TrackerError, TrackerUnavailableError
from ....records.interfaces import Page, Point
from .batches import Batches
from .note import NOTE_CHARACTERS, NOTE_TAG, linked, merge_note
from .opening import TIMEOUT_S, default_uri, open_store, require_mlflow
from .step_traces import step_traces
from .store import BAD_VALUE, Metric, RefusedError, Run, living_run
from .traces import check_traces
from .upload import Upload
from .uri import PROXIED, address

TAG_CHARACTERS = 500

VERDICT_TAGS = frozenset(
    f"stallmeter.{name}"
    for name in (
        "primary",
        "primary_ranks",
        "data_wait_pct",
        "num_workers",
        "num_workers_advised",
        "torch_threads_advised",
        "predicted_speedup",
        "version",
    )
)
"""What a verdict may say in tags. One that a later verdict no longer says is taken away, whoever set it."""

_PREFIX = {"steps": "stallmeter/", "hardware": "system/stallmeter/"}
_log = logging.getLogger("stallmeter")


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
        timeout_s: tuple[float, float] = TIMEOUT_S,
        upload_s: float = 5.0,
        traces: int = 0,
    ) -> None:
        require_mlflow()
        check_traces(traces)
        self._traces = traces
        self.run_id = run_id
        self.tracking_uri = tracking_uri
        self.destination = f"{address(tracking_uri)} run {run_id}"
        self.end_status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED"
        """What `close` says of a run that we own."""
        self.owns_run = owns_run
        """True until `close` has ended a run that we started."""
        self._upload_s = upload_s
        self._store = open_store(tracking_uri, timeout_s)
        self._batches = Batches(self._store, run_id)
        self._upload: Upload | None = None
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
        return cls(default_uri(), run_id) if run_id else None

    @classmethod
    def create_run(
        cls,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        *,
        run_name: str | None = None,
        traces: int = 0,
    ) -> MlflowTracker:
        """Start a run; `close` ends it.

        Args:
            tracking_uri: None for the one that MLflow is set up with.
            experiment: Name of the experiment; made when missing. None for the one that MLflow is set up with, by
                ``mlflow.set_experiment`` or its environment variables, else ``Default``.
            run_name: None for a name that MLflow invents.
            traces: As for the tracker itself.

        Raises:
            MissingPackageError: MLflow is not installed.
            TrackerUnavailableError: MLflow does not answer.
            TrackerError: MLflow refuses.
        """
        uri = tracking_uri or default_uri()
        tracker = cls(uri, "", owns_run=True, traces=traces)
        # A number is one of the server that MLflow is set up with.
        known = os.environ.get("MLFLOW_EXPERIMENT_ID") if experiment is None and tracking_uri is None else None
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        tracker.start_run(name, run_name=run_name, experiment_id=known)
        return tracker

    def start_run(
        self, experiment: str = "Default", *, run_name: str | None = None, experiment_id: str | None = None
    ) -> None:
        """Start the run of a tracker that was made without one, with ``run_id=""``. Raises as `create_run` does.

        Args:
            experiment: Name of the experiment; made when missing.
            run_name: None for a name that MLflow invents.
            experiment_id: The experiment's number, where that is known.
        """
        self.run_id = self._store.create_run(experiment_id or self._store.experiment(experiment), run_name)
        self.destination += self.run_id
        self._batches = Batches(self._store, self.run_id)

    def send(self, points: Sequence[Point]) -> None:
        """Log points under their original time, which makes a second sending leave one copy. Raises as `Tracker.send`.

        A point that MLflow rejects, or fails at while it takes others, is left out with a warning; the others of its
        batch are delivered.
        """
        self._batches.log([_metric(point) for point in points])

    def show(self, page: Page) -> None:
        """Set tags, replace our section of the description and, on the final page, upload files. Raises as `send`.

        A tag of an earlier verdict that the page lacks is taken away.
        """
        run = living_run(self._store, self.run_id)
        files = {name: path for name, path in page.files.items() if path.is_file()} if page.final else {}
        if files and self._only_through_server(run):
            files = {}
        there = page == self._uploaded or not files
        # Straight after the reading, so that no edit of the user falls in between. Links only once the files are there.
        self._write_note(run, linked(run, page.note, files) if there else page.note)
        tags = {_tag_key(k): v[:TAG_CHARACTERS] for k, v in page.tags.items()}
        news = {k: v for k, v in tags.items() if run.tags.get(k) != v}
        if news:
            self._store.log(self.run_id, [], news)
        if page.note:  # one without, a probe's, says nothing of the verdict
            for tag in sorted((VERDICT_TAGS & run.tags.keys()) - tags.keys()):
                self._withdraw(tag)
        if not there:
            self._upload_files(run, page, files)
            run = living_run(self._store, self.run_id)
            self._write_note(run, linked(run, page.note, files))

    def close(self) -> None:
        """End the run if we started it."""
        if self.owns_run:
            self._store.terminate(self.run_id, self.end_status)
            self.owns_run = False

    def _withdraw(self, tag: str) -> None:
        try:
            self._store.delete_tag(self.run_id, tag)
        except RefusedError as exc:
            if exc.code != "RESOURCE_DOES_NOT_EXIST":  # somebody else has taken it away
                raise

    def _only_through_server(self, run: Run) -> bool:
        """Whether the run's files are kept by a server that we were told to go round; says so."""
        if not PROXIED.match(run.artifact_uri) or self.tracking_uri.startswith(("http://", "https://")):
            return False
        _log.warning(
            "stallmeter: the report's files are not uploaded to %s: this run keeps its files behind a server; "
            "to have them there, pass the server's address as tracking URI",
            self.destination,
        )
        return True

    def _write_note(self, run: Run, section: str) -> None:
        old = run.tags.get(NOTE_TAG, "")
        for limit in NOTE_CHARACTERS:
            new = merge_note(old, section, limit)
            if new == old:
                return
            try:
                self._store.log(self.run_id, [], {NOTE_TAG: new})
            except RefusedError as exc:
                if exc.code != BAD_VALUE:
                    raise
            else:
                return
        _log.warning("MLflow took no description for the run %s; the verdict is in its tags", self.run_id)

    def _upload_files(self, run: Run, page: Page, files: Mapping[str, Path]) -> None:
        def upload() -> None:
            for name, path in files.items():
                self._store.upload(run, PurePosixPath("stallmeter", name), path)
            self._log_traces(run, page)

        current = self._upload
        if current is None or current.page != page or current.error is not None:
            current = self._upload = Upload(page, upload)
        if not current.wait(self._upload_s):
            raise TrackerUnavailableError(f"files are still being uploaded to {self.destination}")
        self._upload, self._uploaded = None, page

    def _log_traces(self, run: Run, page: Page) -> None:
        if not self._traces:
            return
        try:
            self._store.trace(run, step_traces(page.slow_steps[: self._traces], page.places))
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
    run = living_run(tracker._store, run_id)
    try:
        return tracker._store.document(run, PurePosixPath(artifact))
    except (TrackerError, ValueError) as exc:
        raise TrackerError(f"the run {run_id} has no readable {artifact}: {exc}") from None


def _metric(point: Point) -> Metric:
    return {
        "key": _PREFIX[point.group] + point.key,
        "value": point.value,
        "timestamp": round(point.time_s * 1000),
        "step": point.step,
    }


def _tag_key(key: str) -> str:
    return key if key.startswith("stallmeter.") else f"stallmeter.{key}"
