"""Whether MLflow is there, where it is, and how a tracking URI is reached."""

from __future__ import annotations

import importlib.util

from ....errors import MissingPackageError
from .client import open_client
from .server import open_server
from .store import TrackingStore

TIMEOUT_S = (2.0, 5.0)
"""Most seconds to connect to a server and to wait for its answer."""


def require_mlflow() -> None:
    """Do nothing where MLflow is installed.

    Raises:
        MissingPackageError: It is not.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise MissingPackageError("mlflow", "mlflow", "Forwarding to MLflow")


def default_uri() -> str:
    """Return the tracking URI that MLflow is set up with.

    Raises:
        MissingPackageError: MLflow is not installed.
    """
    require_mlflow()
    import mlflow

    return str(mlflow.get_tracking_uri())


def open_store(uri: str, timeout_s: tuple[float, float] = TIMEOUT_S) -> TrackingStore:
    """Return what a tracking URI stands for.

    Args:
        uri: The tracking URI.
        timeout_s: Most seconds to connect and to wait for an answer of a server; databases and folders have none.

    Raises:
        TrackerError: It is one that the installed MLflow refuses.
    """
    return open_server(uri, timeout_s) if uri.startswith(("http://", "https://")) else open_client(uri)
