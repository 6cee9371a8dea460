"""What a tracker's client says, made fit to be shown."""

from __future__ import annotations

from stallmeter.delivery.messages import MESSAGE_CHARACTERS, client_message


def test_a_message_is_one_short_line_without_colours_and_secrets() -> None:
    said = ValueError("\x1b[91mno\x1b[0m access\n\tto http://u:s3cret@host, not with s3cret")
    assert client_message(said, "http://u:s3cret@host") == "no access to http://host, not with ***"
    assert len(client_message("x " * 1000)) == MESSAGE_CHARACTERS
