"""A database and a server of MLflow, made once: each takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_telemetry() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield


@pytest.fixture(scope="session")
def sqlite_uri(tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[Path], str]) -> str:
    """A sqlite database with MLflow's tables."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = new_database(folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where the default experiment's artifacts go from now on
        MlflowClient(uri).create_experiment("tests", artifact_location=(folder / "artifacts").as_uri())
    return uri
