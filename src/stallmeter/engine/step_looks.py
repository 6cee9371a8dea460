"""What looks into single steps from the training thread itself: models, gradients, and what functions return.

Each imports its module when it is called: a missing package costs what needs it and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..records.interfaces import Source
from ..rules.same_result import SameResult
from ..window import Window
from .between_steps import BetweenSteps


def mode_sources(between_steps: BetweenSteps, ranks: int) -> Sequence[Source]:
    """Return what sees modes of torch, and what modules compute in a few steps."""
    from ..sources.autocast import AutocastSource
    from ..sources.fixed import FixedSource
    from ..sources.forward_passes import ForwardSource
    from ..sources.modes import ModeSource

    add, guard = between_steps.add, between_steps.guard
    return ModeSource(), AutocastSource(add), ForwardSource(add, guard), FixedSource(add, guard, ranks)


def gradient_sources(between_steps: BetweenSteps, window: Window) -> Sequence[Source]:
    """Return what sees gradients that are in vain, and functions of steps that return the same each time."""
    from ..sources.gradients import DroppedGradientSource, GradientSource, SharedGraphSource
    from ..sources.optimizers import hear_steps, is_compiling
    from ..sources.same_results import SameResultSource

    add, guard, rule = between_steps.add, between_steps.guard, SameResult()
    return (
        GradientSource(add),
        DroppedGradientSource(add, hear_steps, is_compiling),
        SharedGraphSource(add, guard),
        SameResultSource(add, guard, lambda: rule.suspects(window.present())),
    )
