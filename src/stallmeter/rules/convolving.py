"""What bfloat16, and channels that lie last, would save where steps on a CPU are convolutions for the most part."""

from __future__ import annotations

from ..machine.cpu_features import BFLOAT16
from ..records import Convolutions
from ..records.diagnosis import Advice
from ..window import Window
from ..workers.gains import Gain, gain_without
from .frameworks import Setting, name_of, on_cpu
from .rule import COMPUTES

LEAST_SHARE = 0.5
"""Of the steps' computing that is convolutions: of others less is known. Attention of few numbers is 0.6 to 1.2 times
as fast with bfloat16, wide layers up to twice as fast (our measurement). Our choice."""

LEAST_STEP_S = 0.005
"""Shorter steps win nothing: what casts the numbers costs as much. Our measurement, benchmarks/faults/convolutions."""

PASSES = 3.0
"""Of a step, in forward passes: the backward pass takes two (PaLM, appendix B)."""

SIXTEEN_BITS = (1.15, 1.7, 2.4)
"""How many times as fast networks of convolutions are with bfloat16 on a CPU that has instructions for it: at least,
as a rule and at most. Our measurement, `python -m benchmarks.faults.convolutions`: 1.11 to 2.51 times, 1.8 in the
middle of 18. What lies between the convolutions takes half the memory as well: four programs of others won 1.47 to
1.77, more than their convolutions alone would."""

LAST = (1.0, 1.15, 1.38)
"""The same with channels last: 0.87 to 1.40, 1.15 in the middle of 16; a program of others won 1.18."""

MOSTLY = 0.5
"""Part of the convolutions with channels last from which on they are meant to be so."""


def cheaper_convolutions(window: Window) -> tuple[Advice, ...]:
    """Return what makes convolutions cheaper on this CPU; nothing where they are few, or it is done."""
    found, step = window.spent.tensors.convolutions, window.steps.step_time_s
    if found is None or step is None or not on_cpu(window) or step.median < LEAST_STEP_S:
        return ()
    of_modules = min(1.0, PASSES * found.forward_s / step.median)
    if of_modules * found.share < LEAST_SHARE:
        return ()
    return (*_sixteen_bits(window, of_modules), *_channels_last(window, found, of_modules * found.share))


def _sixteen_bits(window: Window, part: float) -> tuple[Advice, ...]:
    autocast, info = window.spent.cpu_autocast, window.spent.optimizer
    computes = (window.facts.computes_16_bits or {}).get(BFLOAT16)
    if not computes or autocast is None or autocast.kind or (info is not None and info.half_share):
        return ()
    gain = _gain(window, part, SIXTEEN_BITS)
    name = (name_of(window.facts, Setting.BFLOAT16) or "").replace('"cuda"', '"cpu"')
    return (
        Advice.of(
            f"Use bfloat16: {name}.",
            expect="The CPU has instructions for it, and convolutions take most of the steps.",
            limit="Compare the loss: numbers have 8 bits of precision; weights and their updates keep 32.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
    )


def _channels_last(window: Window, found: Convolutions, part: float) -> tuple[Advice, ...]:
    if found.channels_last is None or found.channels_last >= MOSTLY:
        return ()
    gain = _gain(window, part, LAST)
    return (
        Advice.of(
            "Keep channels last: model.to(memory_format=torch.channels_last), and the pictures as well.",
            expect="Convolutions need not put their numbers in another order.",
            limit="Compare: with some sizes nothing is won.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
    )


def _gain(window: Window, part: float, times: tuple[float, float, float]) -> Gain:
    computed_s = window.spent.bucket_s(*COMPUTES) or 0.0
    least_s, usual_s, most_s = (part * computed_s * (1.0 - 1.0 / each) for each in times)
    return gain_without(window, usual_s, least=least_s / usual_s, most=most_s / usual_s) if usual_s else Gain()
