"""What it costs that workers hand over more bytes than their batches hold."""

from __future__ import annotations

from ..window import Window
from .costs import SHARED_MEMORY_PER_BYTE_S
from .forecast import forecast

PER_BYTE_S = (0.25e-9, 0.6e-9, 1.0e-9)
"""What each byte costs a loop that waits for it: least, as a rule and most. Our measurement, benchmarks/faults/views:
the less, the more of them fit into the processor's caches."""

LEAST_OF_CROWD = 0.4
"""Part, at the least, of what the copying takes from a loop that computes on the same CPUs, as the model predicts it;
our choice."""

BESIDE = 0.5
"""Part of the wait that is saved beside the crowd, at the most: the model's crowd holds some of it. Our choice."""

MOST = 0.9
"""Part of the training time; more is not believed."""


def spare_s(window: Window) -> tuple[float, float, float]:
    """Return the seconds of training that go with bytes that no batch holds: least, as a rule, and most."""
    content, info, record = window.loader.content, window.loader.info, window.ledger.record
    if content is None or not content.spare_bytes or record is None or not record.steps:
        return 0.0, 0.0, 0.0
    spare = content.spare_bytes * ((info and info.batches_per_step) or 1.0)
    wait_s, crowd_s = window.spent.bucket_s("data_wait") or 0.0, record.steps * _crowd_s(window, spare)
    least_s, usual_s, most_s = of_the_wait_s(record.steps * spare, wait_s)
    both_s = crowd_s + BESIDE * min(usual_s, crowd_s)
    believed_s = MOST * (window.ledger.training_s or 0.0)
    found = max(least_s, LEAST_OF_CROWD * crowd_s), max(usual_s, crowd_s), max(most_s, both_s)
    return min(found[0], believed_s), min(found[1], believed_s), min(found[2], believed_s)


def of_the_wait_s(spare: float, wait_s: float) -> tuple[float, float, float]:
    """Return the seconds of a loop's wait that go with so many bytes: least, as a rule, and most."""
    least_s, usual_s, most_s = (min(each * spare, wait_s) for each in PER_BYTE_S)
    return least_s, usual_s, most_s


def _crowd_s(window: Window, spare: float) -> float:
    """Return by how much a step is longer because workers copy so many bytes on the loop's CPUs."""
    predicted = forecast(window)
    if predicted is None or predicted.asked is None:
        return 0.0
    costs, then_s = predicted.asked[0], predicted.without.no_cpu_s
    if then_s is None or not costs.cpu_s:
        return 0.0
    copying = min(1.0, SHARED_MEMORY_PER_BYTE_S * spare / costs.cpu_s)
    return copying * max(0.0, predicted.without.now_s - then_s)
