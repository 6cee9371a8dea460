"""The headspace probe: how fast the training would be with free data, how fast the loader with free compute.

Runs outside training, for a minute at most, and leaves everything as it was. Importing this package loads the standard
library only.
"""

from __future__ import annotations

from .measure import probe

__all__ = ["probe"]
