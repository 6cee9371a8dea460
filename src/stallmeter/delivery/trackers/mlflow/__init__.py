"""Forwards to a run of MLflow: metrics, searchable tags, our section of the run's description, and files.

MLflow's client retries a dead server for minutes (measured: 246 s when it refuses, 1,207 s when it does not answer),
and its limits can only be changed for the whole process. So a server is asked through MLflow's own request function,
which knows the user's credentials, once and with a timeout. Databases have no such timeout and go through the client.
"""

from __future__ import annotations

from .tracker import MlflowTracker, read_document

__all__ = ["MlflowTracker", "read_document"]
