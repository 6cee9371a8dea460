"""What a rank spends in exchanging gradients: collectives that it entered, and what DDP times itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A run of collectives of one process group, as PyTorch's flight recorder has noted them."""

    time_s: float
    """Unix time of the reading."""
    group: str
    """Name of the process group, the same on all of its ranks."""
    base_s: float
    """Unix time from which the columns below count."""
    sequence: tuple[int, ...]
    """Number of each collective in its group: the same number is the same collective on all ranks."""
    began_us: tuple[int, ...]
    """When this rank asked for it, microseconds after ``base_s``."""
    took_us: tuple[int, ...]
    """From then until it was seen to be complete, or until the end of the backward pass that waits for it; -1 where
    neither is known."""
    sent_bytes: tuple[int, ...]
    """Size of its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpTimes:
    """One iteration of DistributedDataParallel as it timed it itself: the first ten, then each hundredth."""

    time_s: float
    """Unix time of the reading, some time after the iteration."""
    iteration: int
    """Which one: exchanges of this module before it, roughly."""
    step: int
    """Steps of the loop at the reading."""
    backward_s: float
    """From the first gradient to the last: the rank's own computing."""
    exchange_s: float
    """From the first bucket that was sent until the last one was back, waits for late ranks included."""
    overlap_s: float
    """Part of that in which gradients were still computed."""
    sent_bytes: int
    """Of all gradients."""
    buckets: int
    """Pieces in which they are sent."""
    buffers_bytes: int = 0
    """Of all buffers of the module, which may be sent before a forward pass."""
    largest_buffer: str = ""
    """Name of the largest of them; empty without any."""
    largest_buffer_bytes: int = 0
    ranks: int | None = None
    """How many exchange; None where torch does not say."""
    largest_gradient: str = ""
    """Name of the parameter whose gradient is the largest."""
    largest_gradient_bytes: int = 0
    is_of_a_table: bool = False
    """Whether that is an embedding table, with a dense gradient."""

    @property
    def exposed_s(self) -> float:
        """Part of the exchange, and of the waits in it, in which nothing was computed."""
        return max(0.0, self.exchange_s - self.overlap_s)
