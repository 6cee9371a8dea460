"""Hides secrets: the one place that knows what a password looks like, in files, messages and addresses alike."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

HIDDEN = "***"
"""Stands where a secret was."""

VARIABLES = (
    "AWS_SECRET_ACCESS_KEY",
    "DATABRICKS_CLIENT_SECRET",
    "DATABRICKS_PASSWORD",
    "DATABRICKS_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "NEPTUNE_API_TOKEN",
)
"""Environment variables whose values clients of trackers and of artifact stores may repeat in what they raise."""

SHORTEST_VALUE = 8
"""Characters of a variable's value below which it is not looked for: it might be a part of any word."""

SHORTEST_PASSWORD = 3
"""The same for the password of a known address, in messages about that address only."""

_USERINFO = re.compile(r"//[^/\s]*@")
_KEY_VALUE = re.compile(
    r"(?i)((?:password|passwd|token|secret|api_?key|access_?key|signature)=)(?!\*\*\*)(?:'[^']*'|\"[^\"]*\"|[^&\s'\"]+)"
)
_BEARER = re.compile(r"(?i)(\bbearer )[\w.~+/=-]{8,}")


def redact(text: str, address: str = "") -> str:
    """Return a text without secrets.

    Hidden are the user and password of each URL, what follows ``password=``, ``token=`` and the like in a URL, a
    setting or an environment, what follows ``Bearer``, and the values of the environment variables in `VARIABLES`.

    Args:
        text: What may hold them.
        address: A URL with secrets that the text may be about: its query and its password, also decoded, are hidden
            wherever they stand.
    """
    if address:
        text = text.replace(address, without_secrets(address))
        password = _userinfo(address).partition(":")[2]
        for secret in (password, unquote(password)):
            if len(secret) >= SHORTEST_PASSWORD:
                text = text.replace(secret, HIDDEN)
    for name in VARIABLES:
        value = os.environ.get(name, "")
        if len(value) >= SHORTEST_VALUE and value in text:
            text = text.replace(value, HIDDEN)
    text = _KEY_VALUE.sub(rf"\1{HIDDEN}", _USERINFO.sub("//", text))
    return _BEARER.sub(rf"\1{HIDDEN}", text)


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query."""
    return _USERINFO.sub("//", url).partition("?")[0]


def with_gaps(url: str) -> str:
    """Return a URL whose password and query are replaced by `HIDDEN`; a user without a password stays.

    For what cannot be reached without them, so that whoever reads it knows what to fill in.
    """
    location, asked, _ = url.partition("?")
    scheme, found, rest = location.partition("://")
    user = _userinfo(location)
    if user:
        rest = (HIDDEN if ":" in user else user) + rest[len(user) :]
    return f"{scheme}{found}{rest}{f'?{HIDDEN}' if asked else ''}"


def _userinfo(url: str) -> str:
    """Return what stands before the last ``@`` of a URL's host."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[0]
