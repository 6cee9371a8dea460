"""Addresses of MLflow: the same in every folder, and without secrets."""

from __future__ import annotations

import re
from pathlib import Path

from ....records.redaction import with_gaps, without_secrets

PROXIED = re.compile("mlflow-artifacts:/(?!/)(.*)")
"""Where a run's files are when its server keeps them; the group is their folder."""


def address(uri: str) -> str:
    """Return a URI by which a later program can find the store: the same in every folder, and without secrets.

    A database cannot be reached without what is left out, so there ``***`` marks the place.
    """
    if uri.startswith(("http://", "https://")):
        return without_secrets(uri)
    return with_gaps(_absolute(uri))


def _absolute(uri: str) -> str:
    """Return a URI that means the same in every folder."""
    scheme, found, path = uri.partition(":///")
    if found and scheme.partition("+")[0] == "sqlite" and path[:1] not in ("", "/", ":"):
        return f"{scheme}:////{str(Path(path).absolute()).lstrip('/')}"
    if "://" not in uri and not uri.startswith(("databricks", "uc:", "file:/")):
        return Path(uri.removeprefix("file:")).absolute().as_uri()
    return uri
