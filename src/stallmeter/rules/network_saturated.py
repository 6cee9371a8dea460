"""The network is used to its limit, or ever more is sent.

**What it means.** Either an interface carries nearly what its link can, so that whatever comes over it, data from a
remote store, gradients, checkpoints, arrives late. Or the job sends more and more as it goes on: typically a log or an
artifact that grows and is uploaded as a whole each time.

**Evidence.** `host.links`: for each interface the busier direction as a share of the link's speed in percent, median of
the samples. Beside it the mean rate sent in the first, second and last third of the run, in bytes per second.
`spent.data_wait_share_pct`: data wait as a share of training time in percent.

**Advice.** For a full link: read compressed data, cache it locally, upload checkpoints when training pauses. For
growing uploads: start a new file from time to time and send only the new part.

**When it is wrong.** The interface serves every process of the host. Virtual interfaces report a speed that is not
theirs. Uploads that grow because metrics grow in number are no error.

**References.** Chaim Rand, "TensorFlow Performance Analysis" (2020): an event file that is uploaded ever larger takes
the bandwidth of the training data. The shares are our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSaturated:
    """Fires when a link is nearly full, or when the job sends ever more."""

    id: ClassVar[str] = "network-saturated"
    title: ClassVar[str] = "The network is used to its limit, or ever more is sent"
    needs: ClassVar[tuple[str, ...]] = ("host.links", "spent.data_wait_share_pct")
    optional: ClassVar[tuple[str, ...]] = ("workers.blocked_share",)

    use_pct: float = threshold(80.0, "%", "our choice: protocols leave little above this of a link's speed")
    wait_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    blocked: float = threshold(0.3, "of a worker's time", "our choice: below it workers compute, the net is not it")
    growth: float = threshold(3.0, "x", "our choice: a file that grows steadily, sent whole, makes it 5")
    middle_growth: float = threshold(1.5, "x", "our choice: steady growth makes it 3, a single upload less")
    late_growth: float = threshold(1.2, "x", "our choice: steady growth makes it 1.7, two equal uploads 1")
    min_mb_per_s: float = threshold(1.0, "MB/s", "our choice: less disturbs no training")

    def check(self, window: Window) -> Diagnosis | None:
        """Look for a full link, else for growing uploads."""
        return self._full_link(window) or self._growing_uploads(window)

    def _full_link(self, window: Window) -> Diagnosis | None:
        links, wait, blocked = (
            window.host.links or {},
            window.spent.data_wait_share_pct or 0.0,
            window.workers.blocked_share,
        )
        used = [(link.use_pct, name) for name, link in links.items() if link.use_pct is not None]
        share, name = max(used, default=(0.0, ""))
        if not used or share < self.use_pct:
            return None
        felt = wait >= self.wait_pct and blocked is not None and blocked >= self.blocked
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if felt else Severity.INFO,
            title=f"The network interface {name} is used to its limit",
            summary=f"{name} carried {share:.0f} % of its link's speed in a typical second; "
            f"data wait took {wait:.0f} % of the training time.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.5,
            culprit=name,
            evidence=(
                Evidence(f"use of {name}, median", share, "%", self.use_pct, "our choice: little is left above it"),
                Evidence("data wait, share of training time", wait, "%", self.wait_pct, "MLPerf Storage"),
            ),
            advice=(
                Advice.of(
                    "Cache data locally after the first read, or copy it before training.",
                    expect="Less traffic from the second epoch on, and less data wait.",
                    limit="It takes room on a local disk.",
                ),
                Advice.of("Read compressed or smaller data, and decode it here.", limit="Decoding costs CPU time."),
                Advice.of("Send checkpoints and artifacts when training pauses, not beside it."),
            ),
        )

    def _growing_uploads(self, window: Window) -> Diagnosis | None:
        for name, link in (window.host.links or {}).items():
            first, middle, last = link.sent_bytes_per_s or (0.0, 0.0, 0.0)
            early = middle >= self.middle_growth * first and middle * self.growth >= last
            late = last >= max(self.late_growth * middle, self.growth * first, self.min_mb_per_s * 1e6)
            if early and late:
                return Diagnosis(
                    rule=self.id,
                    severity=Severity.INFO,
                    title=f"Ever more is sent over {name}",
                    summary=f"{name} sent {first / 1e6:.1f} MB/s in the first third of the run "
                    f"and {last / 1e6:.1f} MB/s in the last.",
                    time_lost_s=0.0,
                    share_pct=0.0,
                    confidence=0.5,
                    culprit=name,
                    evidence=(
                        Evidence(
                            "sent, last third", last / 1e6, "MB/s", self.min_mb_per_s, "our choice: less is harmless"
                        ),
                        Evidence("sent, first third", first / 1e6, "MB/s"),
                    ),
                    advice=(
                        Advice.of(
                            "Find the log, event or artifact file that grows and is uploaded whole each time.",
                        ),
                        Advice.of("Begin a new file from time to time.", expect="Only what is new is sent."),
                    ),
                )
        return None
