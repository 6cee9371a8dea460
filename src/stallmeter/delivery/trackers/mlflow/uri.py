"""Addresses of MLflow: the same in every folder, and without secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

MESSAGE_CHARACTERS = 300

PROXIED = re.compile("mlflow-artifacts:/(?!/)(.*)")
"""Where a run's files are when its server keeps them; the group is their folder."""

_USERINFO = re.compile(r"//[^/\s]*@")


def address(uri: str) -> str:
    """Return a URI by which a later program can find the store: the same in every folder, and without secrets.

    A database cannot be reached without what is left out, so there ``***`` marks the place.
    """
    if uri.startswith(("http://", "https://")):
        return without_secrets(uri)
    location, asked, _ = _absolute(uri).partition("?")
    scheme, found, rest = location.partition("://")
    user, known, _ = rest.partition("/")[0].rpartition("@")
    if known:
        rest = ("***" if ":" in user else user) + "@" + rest[len(user) + 1 :]
    return f"{scheme}{found}{rest}{'?***' if asked else ''}"


def _absolute(uri: str) -> str:
    """Return a URI that means the same in every folder."""
    scheme, found, path = uri.partition(":///")
    if found and scheme.partition("+")[0] == "sqlite" and path[:1] not in ("", "/", ":"):
        return f"{scheme}:////{str(Path(path).absolute()).lstrip('/')}"
    if "://" not in uri and not uri.startswith(("databricks", "uc:", "file:/")):
        return Path(uri.removeprefix("file:")).absolute().as_uri()
    return uri


def without_secrets(uri: str) -> str:
    """Return a URI without user, password and query."""
    return _USERINFO.sub("//", uri).partition("?")[0]


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Takes a tracking URI's secrets out of messages."""

    uri: str

    def __call__(self, message: object) -> str:
        """Return the message without them, on one line and cut to 300 characters."""
        text = str(message).replace(self.uri, without_secrets(self.uri))
        userinfo = self.uri.partition("://")[2].partition("/")[0].rpartition("@")[0]
        password = userinfo.partition(":")[2]
        for secret in {password, unquote(password)}:
            if len(secret) > 2:
                text = text.replace(secret, "***")
        return " ".join(_USERINFO.sub("//", text).split())[:MESSAGE_CHARACTERS]
