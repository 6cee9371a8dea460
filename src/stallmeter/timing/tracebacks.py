"""What the program's code raises leaves ours without a sign of it, as it would have come without us.

Tools that group errors by their traceback, tests that look at it, and whoever reads it would find code there that
nobody has called.
"""

from __future__ import annotations

import sys

_RAISED_BY_OBJECT = sys.version_info >= (3, 11)
"""Whether a bare ``raise`` takes the traceback that the exception has by then; before, the one that it was caught
with, which begins with the frame that has caught it."""

_PACKAGE = f"{__name__.partition('.')[0]}."


def let_out(exc: BaseException) -> None:
    """Take our frames off an exception that a call of the program's code has raised, before a bare ``raise``.

    The calling frame is taken off, and those of ours below it up to the first that is not. Where all below are ours,
    they stay: it is an error of ours. Before Python 3.11 the calling frame stays.

    Args:
        exc: That the calling frame has caught, around its call of what is not ours.
    """
    caught = exc.__traceback__
    if caught is None:
        return
    below = rest = caught.tb_next
    while rest is not None and str(rest.tb_frame.f_globals.get("__name__")).startswith(_PACKAGE):
        rest = rest.tb_next
    if rest is None:
        rest = below
    if _RAISED_BY_OBJECT:
        exc.__traceback__ = rest
    else:
        caught.tb_next = rest
