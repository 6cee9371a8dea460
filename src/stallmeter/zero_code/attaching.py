"""What a program or a notebook calls that wants every training loop measured and none named."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from ..engine.environment import VARIABLE
from ..engine.monitor import Monitor
from ..engine.options import Options, set_unasked, takes_options
from .patches import choose, loop_of_this_process
from .startup import begin, end

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..engine.options import OptionArguments
    from .loop import Loop

_log = logging.getLogger("stallmeter")
_before: list[str | None] = []
"""What the environment said before the first call that holds; empty where none does."""


class Auto:
    """Measures whatever loop trains; see `auto`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @property
    def monitor(self) -> Monitor | None:
        """Of the loop's run; None until an optimizer has stepped, and where a framework's callback records."""
        return self._loop.monitor

    def stop(self) -> None:
        """End the run, and leave nothing of ours in torch's classes."""
        end()
        set_unasked(None)
        while _before:
            before = _before.pop()
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before


@takes_options
def auto(**options: Unpack[OptionArguments]) -> Auto:
    """Measure every loop that trains from now on, as ``stallmeter run`` does for a whole program.

    What trains with Lightning, the Hugging Face Trainer or Keras from now on is given their callback, with the same
    options. Call it once, before the first batch.

    Args:
        **options: As for `Monitor`. Those of the newest call hold; once a run has begun they change nothing.

    Raises:
        SettingError: An option makes no sense.
        TypeError: There is no such option.
    """
    chosen = Options.of(options)
    chosen.check_recordings()
    if not _before:
        _before.append(os.environ.get(VARIABLE))
    os.environ[VARIABLE] = "1"  # Lightning's entry points look for it
    begin()
    _tell_other(chosen, loop_of_this_process())
    return Auto(choose(chosen))


def _tell_other(chosen: Options, loop: Loop) -> None:
    """Say which options do not hold, of those that two calls have given."""
    begun, known = loop.run is not None, loop.options
    names = chosen.others(than=known)
    if not names or (chosen if begun else known) == Options():
        return
    said = ", ".join(names)
    if begun:
        _log.warning("stallmeter: a run has begun; what this auto() says of %s does not hold", said)
    else:
        _log.warning("stallmeter: auto() was called before with another %s; the last call holds", said)
