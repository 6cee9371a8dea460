"""What a run of the demo leaves."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """The recording and the MLflow run."""

    recording: Path
    """Folder of the recording."""
    tracking_uri: str
    experiment_id: str
    run_id: str

    def next_steps(self) -> str:
        """Return the commands that show the run, for the user to copy."""
        return (
            f"See the report again:   stallmeter report {shlex.quote(str(self.recording))}\n"
            f"See the run in MLflow:  mlflow ui --backend-store-uri {shlex.quote(self.tracking_uri)}\n"
            f"then open               http://127.0.0.1:5000/#/experiments/{self.experiment_id}/runs/{self.run_id}"
        )
