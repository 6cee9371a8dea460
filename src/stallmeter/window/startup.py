"""What the start of workers cost: by how much the first wait of an epoch exceeds the others."""

from __future__ import annotations

from collections import deque


class FirstWaits:
    """The waits for the first batches of epochs. Old ones are settled and forgotten, their excess is not."""

    def __init__(self) -> None:
        self._open_s: deque[float] = deque(maxlen=64)
        self._settled_s = 0.0

    def __len__(self) -> int:
        return len(self._open_s)

    def add(self, wait_s: float) -> None:
        """Take the first wait of an epoch."""
        self._open_s.append(wait_s)

    def settle(self, steady_s: float | None) -> None:
        """Compare those that are open with a steady wait, for good; they stay open while that is None."""
        if steady_s is not None:
            self._settled_s = self.excess_s(steady_s)
            self._open_s.clear()

    def excess_s(self, steady_s: float | None) -> float:
        """Seconds by which all of them exceed a steady wait; those that are open count once that is known."""
        if steady_s is None:
            return self._settled_s
        return self._settled_s + sum(max(0.0, wait_s - steady_s) for wait_s in self._open_s)
