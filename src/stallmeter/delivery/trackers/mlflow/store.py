"""What is asked of MLflow, however it is reached, and what it may answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from ....errors import TrackerError, TrackerUnavailableError
from ....records.redaction import without_secrets
from ...messages import client_message
from .below import status_of, what_is_missing
from .step_traces import StepTrace

Metric = dict[str, Any]

OUR_EXPERIMENT = {"mlflow.experimentKind": "custom_model_development"}
"""Tags of an experiment that we make. Without one, MLflow 3 guesses from what it holds whether to show runs and their
curves or traces and evaluations; older versions take no notice. What somebody else made keeps its tags."""

DATABASES = frozenset(("mssql", "mysql", "postgresql", "sqlite"))
"""Schemes of MLflow's own databases, without the driver."""

BAD_VALUE = "INVALID_PARAMETER_VALUE"
"""What MLflow answers where one of several values is to blame."""

INTERNAL = "INTERNAL_ERROR"

_REFUSALS = frozenset(
    {
        "BAD_REQUEST",
        "CUSTOMER_UNAUTHORIZED",
        "ENDPOINT_NOT_FOUND",
        "FEATURE_DISABLED",
        BAD_VALUE,
        "NOT_IMPLEMENTED",
        "PERMISSION_DENIED",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
        "UNAUTHENTICATED",
    }
)


class RefusedError(TrackerError):
    """MLflow said no, with its error code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class FailedError(TrackerUnavailableError):
    """MLflow failed inside: it is in trouble, or in all its health it cannot take one of the points."""


class CollisionError(TrackerUnavailableError):
    """The database holds, or is just being given, points that were sent again."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of a run."""

    id: str
    experiment_id: str
    artifact_uri: str
    deleted: bool
    tags: Mapping[str, str]


class TrackingStore(Protocol):
    """The few things asked of MLflow. Each raises TrackerUnavailableError or TrackerError."""

    def log(self, run_id: str, metrics: Sequence[Metric], tags: Mapping[str, str]) -> None:
        """Log metrics and set tags of a run."""
        ...

    def delete_tag(self, run_id: str, key: str) -> None:
        """Take a tag from a run; RefusedError with the code RESOURCE_DOES_NOT_EXIST where there is none."""
        ...

    def run(self, run_id: str) -> Run:
        """Return a run."""
        ...

    def experiment(self, name: str, artifact_location: str | None = None) -> str:
        """Return the id of the experiment of that name; make it, with `OUR_EXPERIMENT`'s tags, when missing."""
        ...

    def create_run(self, experiment_id: str, name: str | None) -> str:
        """Start a run, under a name that MLflow invents when it is None, and return its id."""
        ...

    def terminate(self, run_id: str, status: str) -> None:
        """End a run, for trace as ``FINISHED``."""
        ...

    def upload(self, run: Run, artifact: PurePosixPath, path: Path) -> None:
        """Upload a file to a path among the run's artifacts."""
        ...

    def trace(self, run: Run, traces: Sequence[StepTrace]) -> None:
        """Make a trace of each step; a second time leaves one copy."""
        ...

    def document(self, run: Run, artifact: PurePosixPath) -> Any:
        """Return a JSON file among the run's artifacts, read. Raises ValueError too, when it is no JSON."""
        ...


def deleted_experiment(name: str) -> TrackerError:
    """Return the error for an experiment that is there and cannot be used."""
    return TrackerError(f"the experiment {name!r} has been deleted; restore it or choose another name")


def living_run(store: TrackingStore, run_id: str) -> Run:
    """Return a run, unless it has been deleted.

    Raises:
        TrackerUnavailableError: MLflow does not answer.
        TrackerError: It refuses, or the run has been deleted.
    """
    run = store.run(run_id)
    if run.deleted:
        raise TrackerError(f"the run {run_id} has been deleted; restore it to have the rest delivered")
    return run


def translated(exc: BaseException, uri: str) -> TrackerError | TrackerUnavailableError:
    """Return our error for one of MLflow, a database, a network or a disk; without its context, which has secrets."""
    code = str(getattr(exc, "error_code", ""))
    status = status_of(exc)
    message = client_message(exc, uri) or type(exc).__name__
    missing = what_is_missing(exc, uri)
    if missing is not None:
        return RefusedError(missing, code)
    if type(exc).__name__ == "UnsupportedModelRegistryStoreURIException":
        if uri.partition("://")[0].partition("+")[0] in DATABASES:
            what = "mlflow-skinny only talks to servers"
            message = f"{what}; for a database install the whole package: pip install mlflow"
        else:
            message = f"MLflow knows no {without_secrets(uri)!r}; give http://HOST:PORT, or sqlite:///mlflow.db"
        return RefusedError(message, code)
    if "filesystem tracking backend" in message:
        what = "this MLflow no longer writes runs to a folder"
        fix = 'pass tracking_uri="sqlite:///mlflow.db" or a server\'s address'
        return RefusedError(f"{what}; {fix}. It said: {message}", code)
    if is_database_trouble(code, exc):
        return CollisionError(message)
    # The code is that of a server without an answer, too.
    if code == INTERNAL and (type(exc).__name__ == "RestException" or not uri.startswith(("http://", "https://"))):
        return FailedError(message)
    if is_value_refused(code, exc):
        return RefusedError(message, BAD_VALUE)
    refused = code in _REFUSALS or (400 <= status < 500 and status not in (408, 429))
    return RefusedError(message, code) if refused else TrackerUnavailableError(message)


def is_database_trouble(code: str, message: object) -> bool:
    """Whether MLflow's bad request is its database's: mostly, an unanswered request of ours is still being written."""
    return _is_of_database(code, message) and not is_value_refused(code, message)


def is_value_refused(code: str, message: object) -> bool:
    """Whether MLflow's bad request is a value that its database cannot hold."""
    return _is_of_database(code, message) and "DataError" in str(message)


def _is_of_database(code: str, message: object) -> bool:
    text = str(message)
    return code == "BAD_REQUEST" and ("sqlalche.me" in text or "[SQL:" in text)
