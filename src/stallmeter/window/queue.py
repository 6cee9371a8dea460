"""What the loop waited for at the prefetch queue: batches that were late, or the hand-over of those that were ready."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ..records import StepRecord
from .loader import LoaderSignals
from .steps import MIN_STEADY_STEPS, StepSignals


class QueueSignals:
    """Signals of the prefetch queue.

    Args:
        steps: Each knows what was in the queue when it asked for its batch.
        loader: Tells what the loop's thread does meanwhile.
    """

    def __init__(self, steps: StepSignals, loader: LoaderSignals | None = None) -> None:
        self._steps, self._loader = steps, loader

    @property
    def ready_wait_share(self) -> float | None:
        """Share (0 to 1) of the wait in steps whose batch was ready when asked for: it only had to be handed over."""
        return self._wait_share(lambda s: s.head_ready)

    @property
    def blocked_wait_share(self) -> float | None:
        """Share (0 to 1) of the wait in steps whose batch was late while others were ready behind it."""
        return self._wait_share(
            lambda s: None if s.head_ready is None or s.ready is None else not s.head_ready and s.ready > 0
        )

    @property
    def top_wait_share(self) -> float | None:
        """Share (0 to 1) of the steady data wait in the tenth of the steps that waited longest."""
        waits = sorted((s.data_wait_s for s in self._steps.steady), reverse=True)
        total = sum(waits)
        if len(waits) < 2 * MIN_STEADY_STEPS or total <= 0:
            return None
        return sum(waits[: -(-len(waits) // 10)]) / total

    @property
    def usual_wait_in_loop_s(self) -> float | None:
        """Median wait of a steady step, seconds, where the loop makes its batches itself; None where workers do."""
        waits = self._steps.data_wait_s
        alone = self._loader is not None and self._loader.num_workers == 0
        return waits.median if alone and waits is not None else None

    @property
    def handover_s(self) -> float | None:
        """Median wait for a batch that was ready: the cost of handing it over between processes.

        Choosing the items of a later batch, which the loop's thread does in the same call, is taken off.
        """
        return self._handover_s(statistics.median)

    @property
    def mean_handover_s(self) -> float | None:
        """Mean wait for a batch that was ready: where its worker has long been idle, all of it is the hand-over."""
        return self._handover_s(statistics.fmean)

    def _handover_s(self, middle: Callable[[list[float]], float]) -> float | None:
        waits = [s.data_wait_s for s in self._steps.steady if s.head_ready]
        indices_s = (self._loader and self._loader.indices_s) or 0.0
        return max(0.0, middle(waits) - indices_s) if len(waits) >= MIN_STEADY_STEPS else None

    def _wait_share(self, of: Callable[[StepRecord], bool | None]) -> float | None:
        """Share of the wait in steps of which something is true; None when most of it is in steps that do not tell."""
        known = true = total = 0.0
        for step in self._steps.steady:
            total += step.data_wait_s
            answer = of(step)
            if answer is not None:
                known += step.data_wait_s
                true += step.data_wait_s if answer else 0.0
        return true / known if known > 0 and known >= 0.5 * total else None
