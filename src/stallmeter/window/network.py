"""What the samples of the network interfaces say together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..records import HostSample, NetworkSample

MIN_SAMPLES = 5
"""Below this many samples nothing is said."""


@dataclass(frozen=True, slots=True)
class Link:
    """Traffic of one network interface."""

    use_pct: float | None
    """Busier direction as a share of the link's speed, median over the run; None when the speed is not known."""
    sent_bytes_per_s: tuple[float, float, float] | None
    """Mean rate in the first, second and last third of the run; None with too few samples."""


def links(samples: Sequence[HostSample]) -> dict[str, Link]:
    """Describe each network interface, by its name."""
    by_name: dict[str, list[NetworkSample]] = {}
    for interface in (i for s in samples for i in s.network):
        by_name.setdefault(interface.name, []).append(interface)
    return {name: _link(found) for name, found in by_name.items()}


def _link(samples: Sequence[NetworkSample]) -> Link:
    used = [
        100.0 * max(s.received_bytes_per_s, s.sent_bytes_per_s) / s.speed_bytes_per_s
        for s in samples
        if s.speed_bytes_per_s
    ]
    third = len(samples) // 3
    sent = [s.sent_bytes_per_s for s in samples]
    return Link(
        use_pct=statistics.median(used) if len(used) >= MIN_SAMPLES else None,
        sent_bytes_per_s=(
            (sum(sent[:third]) / third, sum(sent[third:-third]) / (len(sent) - 2 * third), sum(sent[-third:]) / third)
            if third >= MIN_SAMPLES
            else None
        ),
    )
