"""Hides secrets: the one place that knows what a password looks like, in files, messages and addresses alike."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, unquote_plus

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
"""Characters below which a variable's value, or one of a known address's query, is not looked for: it might be a part
of any word."""

SHORTEST_PASSWORD = 3
"""The same for the password of a known address, in messages about that address only."""

_SLASHES = re.compile(r"(\b[a-zA-Z][\w+.-]*:)?//")
_WORD = re.compile(r"\S*")
_NAMES = r"(?:password|passwd|passphrase|\bpwd|token|secret|api_?key|access_?key|account_?key|signature|\bsig)"
_KEY_VALUE = re.compile(rf"(?i)({_NAMES}=)(?!\*\*\*)(?:'[^']*'|\"[^\"]*\"|[^&;\s'\"]+)")
_QUOTED = re.compile(rf"(?i)(([\"']){_NAMES}\2\s*:\s*)(?:'[^']*'|\"[^\"]*\")")
_HEADER = re.compile(
    r"(?i)(\bbearer |\bx-api-key[\"']?\s*[:=]\s*[\"']?|\bauthorization[\"']?\s*[:=]\s*[\"']?basic )[\w.~+/=-]{8,}"
)


def redact(text: str, address: str = "") -> str:
    """Return a text without secrets.

    Hidden are the user and password of each URL, what follows ``password=``, ``token=``, ``sig=`` and the like in a
    URL, a setting or an environment, and ``"password":`` in JSON, what follows ``Bearer`` or ``Basic`` in a header, and
    the values of the environment variables in `VARIABLES`.

    Args:
        text: What may hold them.
        address: A URL with secrets that the text may be about: its query and its password, also decoded, are hidden
            wherever they stand.
    """
    if address:
        text = text.replace(address, without_secrets(address))
        for secret in _secrets(address):
            text = text.replace(secret, HIDDEN)
    for name in VARIABLES:
        value = os.environ.get(name, "")
        if len(value) >= SHORTEST_VALUE and value in text:
            text = text.replace(value, HIDDEN)
    text = _KEY_VALUE.sub(rf"\1{HIDDEN}", _without_users(text))
    return _HEADER.sub(rf"\1{HIDDEN}", _QUOTED.sub(rf"\1{HIDDEN}", text))


def _secrets(address: str) -> list[str]:
    """Return what a URL tells nobody, the longest first: password, query and the values in that, decoded, too."""
    password, query = _userinfo(address).partition(":")[2], address.partition("?")[2]
    values = (value for _, _, value in (part.partition("=") for part in query.split("&")))
    known = [(password, SHORTEST_PASSWORD), *((part, SHORTEST_VALUE) for part in (query, *values))]
    found = {one for part, least in known for one in (part, unquote(part), unquote_plus(part)) if len(one) >= least}
    return sorted(found, key=len, reverse=True)


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query."""
    return _without_users(url).partition("?")[0]


def _without_users(text: str) -> str:
    """Return a text without user and password of each URL; the last one first, for several may stand in one word."""
    for found in reversed(list(_SLASHES.finditer(text))):
        rest = _WORD.match(text, found.end())
        user = _user_of(found.group(1) or "", rest.group() if rest else "")
        if user or text.startswith("@", found.end()):
            text = text[: found.end()] + text[found.end() + len(user) + 1 :]
    return text


def with_gaps(url: str) -> str:
    """Return a URL whose password and query are replaced by `HIDDEN`; a user without a password stays.

    For what cannot be reached without them, so that whoever reads it knows what to fill in.
    """
    scheme, found, rest = url.partition("://")
    user = _userinfo(url)
    shown = HIDDEN if ":" in user else user
    location, asked, _ = rest[len(user) :].partition("?")
    return f"{scheme}{found}{shown}{location}{f'?{HIDDEN}' if asked else ''}"


def _userinfo(url: str) -> str:
    """Return the user and password of a URL."""
    scheme, _, rest = url.partition("//")
    return _user_of(scheme, rest)


def _user_of(scheme: str, rest: str) -> str:
    """Return what stands before the last ``@`` of a URL's host.

    SQLAlchemy lets a password of a database hold slashes and question marks; ``HTTP`` does not, and has ``@`` in paths.

    Args:
        scheme: With its colon; may be empty.
        rest: What follows the slashes.
    """
    host = rest.partition("/")[0]
    if not scheme.lower().startswith("http"):
        user, _, password = rest.rpartition("@")[0].partition(":")
        if not set("/?") & set(user) and not _PORT.match(password):
            host = rest
    return host.rpartition("@")[0]


_PORT = re.compile(r"\d+[/?]")
"""What follows the colon of a host; a path or a query may hold an ``@``."""
