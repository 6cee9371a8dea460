"""What is known of a run: a bounded history, and the signals that rules may read."""

from __future__ import annotations

from .window import BODY as BODY
from .window import LOSSES as LOSSES
from .window import Outliers as Outliers
from .window import Window as Window
