"""Runs of Neptune's clients, 1.x (`classic`) and 3.x (`scale`).

The hosted service has ended; both clients go on with servers of one's own, in offline mode, and in packages that kept
their interface. So a run is known by what it can do, not by where its class comes from. A client keeps what it is
given in a folder of its own and sends it when it can; what it was given is not sent again.
"""

from __future__ import annotations

from .classic import RUN_ID_CHARACTERS, NeptuneTracker
from .scale import NeptuneScaleTracker

__all__ = ["RUN_ID_CHARACTERS", "NeptuneScaleTracker", "NeptuneTracker"]
