"""What a program or a notebook calls that wants every training loop measured and none named."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..engine.monitor import Monitor
from ..engine.options import Options, set_unasked, takes_options
from .patches import choose
from .startup import begin, end

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..engine.options import OptionArguments
    from .loop import Loop

VARIABLE = "STALLMETER"


class Auto:
    """Measures whatever loop trains; see `auto`."""

    def __init__(self, loop: Loop, before: str | None) -> None:
        self._loop = loop
        self._before = before

    @property
    def monitor(self) -> Monitor | None:
        """Of the loop's run; None until an optimizer has stepped, and where a framework's callback records."""
        return self._loop.monitor

    def stop(self) -> None:
        """End the run, and leave nothing of ours in torch's classes."""
        end()
        set_unasked(None)
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before


@takes_options
def auto(**options: Unpack[OptionArguments]) -> Auto:
    """Measure every loop that trains from now on, as ``stallmeter run`` does for a whole program.

    What trains with Lightning, the Hugging Face Trainer or Keras from now on is given their callback, with the same
    options. Call it once, before the first batch.

    Args:
        **options: As for `Monitor`; once a run has begun they change nothing.

    Raises:
        SettingError: An option makes no sense.
        TypeError: There is no such option.
    """
    chosen = Options.of(options)
    chosen.check_recordings()
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"  # Lightning's entry points look for it
    begin()
    return Auto(choose(chosen), before)
