"""What a tracker's client says, made fit to be shown."""

from __future__ import annotations

import re

from ..records.redaction import redact

MESSAGE_CHARACTERS = 300

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def client_message(said: object, address: str = "") -> str:
    """Return it on one line, without colours and secrets, cut to 300 characters.

    Args:
        said: A text, or what was raised.
        address: The tracker's, whose secrets the client may repeat.
    """
    return " ".join(redact(_COLOURS.sub("", str(said)), address).split())[:MESSAGE_CHARACTERS]
