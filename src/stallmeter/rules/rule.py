"""What a rule is."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any, ClassVar, Protocol

from ..errors import SettingError
from ..records.diagnosis import Diagnosis
from ..window import Window
from ..window.signals import signals

EXAMPLE = {"id": "slow-logging", "title": "Logging holds up the steps"}


class Rule(Protocol):
    """Window to diagnosis, or None. A frozen dataclass whose fields are thresholds made by `threshold`.

    It may have more class variables. ``optional`` lists signals that ``check`` reads beside those in ``needs``: without
    them it says less, and nothing else. ``instead`` lists signals that stand in for all those in ``needs``, so that a
    rule can also judge what has none of these: loaders without torch's workers. Where there are several such lists, it
    is a tuple of them (`alternatives`). Rules of one ``family`` explain the
    same seconds (`evaluate`). ``bucket`` is the bucket of the ledger whose seconds a rule explains: where one rank of a
    job loses them and all others wait for it, the rule's diagnosis is the job's. ``own_severity`` is true where seconds
    or the hardware say how severe a diagnosis is, and not what its removal gains. Rules of the family ``input`` explain
    ``data_wait``.
    """

    id: ClassVar[str]
    """The problem's name, kebab-case; the rule's file has the same name."""
    title: ClassVar[str]
    """The problem as a statement."""
    needs: ClassVar[tuple[str, ...]]
    """Signals of the window without which the rule abstains, for example ``gpu.utilization_pct``."""

    def check(self, window: Window) -> Diagnosis | None:
        """Return a diagnosis when the window shows the problem, else None."""
        ...


THREADS_SHARE = (0.0, 0.519, 0.823)
"""Least, usual and most of the computing that threads share, by Amdahl's law: with twice as many of them steps are 1,
1.35 and 1.7 times as fast. Our measurement: 1.15 to 1.66 times in 11 of 16 cases with a second thread."""

COMPUTES = ("forward", "backward", "compute")
"""Buckets in which the model and its loss compute, the optimizer left out."""

LOOKS = 1.28
"""Standard errors, of the looks that met something, in which 8 of 10 of its shares lie."""

BACKWARD = 0.62
"""Share of a step in one piece that its backward pass takes: twice the forward pass, and a little beside both."""

BACKWARD_OF_MODEL = (2.0, 0.5)
"""What a model's backward takes as a rule and at the least, as multiples of its forward: what the backward pass takes
beyond that is a loss's or a penalty's. 0.8 to 2 are usual on a CPU, and looks find a thread more often there. Our
measurement, benchmarks/faults/penalty."""

MOST_OF_A_STEP = 0.8
"""Part of the steps' work that is left out at the most with gradients that nobody uses. Our measurement,
benchmarks/faults/gradients."""


def between_looks(samples: int, least: float, most: float) -> tuple[float, float]:
    """Return the least and the most of what was seen in looks, with the chance in which of them it was met.

    Args:
        samples: Looks that met it.
        least: As a multiple of the usual, if all looks had been taken.
        most: The same.
    """
    error = LOOKS / math.sqrt(samples)
    return max(0.0, 1.0 - math.hypot(error, 1.0 - least)), 1.0 + math.hypot(error, most - 1.0)


def threshold(default: float, unit: str, source: str) -> Any:
    """A rule's dataclass field that carries its unit and where the number comes from.

    Args:
        default: The value used when the user says nothing.
        unit: Unit of the value, for example ``%`` or ``s``.
        source: A sentence that says who uses this value or what it was calibrated on.
    """
    return dataclasses.field(default=default, metadata={"unit": unit, "source": source})


def check_rules(rules: Iterable[object]) -> None:
    """Refuse what cannot be asked, before a run rather than in it.

    Raises:
        SettingError: One is no rule, or lists a signal that no window has: it would abstain in every run.
    """
    for rule in rules:
        if not callable(getattr(rule, "check", None)):
            raise SettingError(f"rules holds {rule!r}, which has no check(window)")
        for name in ("id", "title"):
            if not isinstance(text := getattr(rule, name, None), str) or not text:
                raise SettingError(f"{_name(rule)}: {name} is {text!r}; give a text, such as {EXAMPLE[name]!r}")
        if getattr(rule, "needs", None) is None:
            raise SettingError(f"{_name(rule)} has no needs; give a tuple of signals, () for none")
        for listed, verb in (("needs", "needs"), ("optional", "reads"), ("instead", "reads")):
            names = getattr(rule, listed, ())
            if listed == "instead" and isinstance(names, (tuple, list)):
                names = tuple(chain.from_iterable(alternatives(rule)))
            if not isinstance(names, (tuple, list)):
                raise SettingError(f"{_name(rule)}: {listed} is {names!r}; give a tuple of signals")
            for name in names:
                if name not in signals():
                    raise SettingError(
                        f"{_name(rule)} {verb} {name!r}, which is no signal of the window; {_hint(name)}"
                    )


def check_names(rules: Iterable[Rule]) -> None:
    """Refuse two rules of one name: only one of them would be known by it.

    Raises:
        SettingError: It says which name.
    """
    twice = [name for name, times in Counter(rule.id for rule in rules).items() if times > 1]
    if twice:
        raise SettingError(f"rules holds two of the name {twice[0]!r}; leave one of them out")


def alternatives(rule: object) -> tuple[tuple[str, ...], ...]:
    """Return the lists of signals each of which stands in for all that a rule needs."""
    instead = tuple(getattr(rule, "instead", ()))
    if not instead:
        return ()
    return instead if all(isinstance(one, (tuple, list)) for one in instead) else (instead,)


def _name(rule: object) -> str:
    return f"rule {getattr(rule, 'id', type(rule).__name__)}"


def _hint(name: object) -> str:
    """Name the nearest signal: the same one of another part first."""
    asked = str(name)
    leaf = asked.rpartition(".")[2]
    same = [signal for signal in signals() if signal.rpartition(".")[2] == leaf]
    close = same or difflib.get_close_matches(asked, signals(), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "docs/reference/signals.md lists them"
