"""What is planted, and the changes that would remove it.

A *lever* is one change that wins lost time back: more workers, cheaper items, a callback that is gone. It is what a
verdict's first advice says to do. A verdict is right if its lever is the one that wins the time back; so every lever
names the rules that pull it. Levers that act on the same seconds (the wait for data) form one cause: a setting, which
costs the user a line, comes before work on the data, and counts as the cause if it wins back at least half of what
instant items would. The items count too where the setting leaves a fifth or more of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .program import Program

HEALTHY = "healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A change that removes a cause."""

    name: str
    rules: tuple[str, ...]
    """Rules whose first advice says this."""
    changes: tuple[Mapping[str, Any], ...]
    """Fields of the program, changed; of several the best counts."""
    setting: bool = True
    """A setting, or else work on code and data."""
    whole: bool = False
    """It shows in a whole run, not in each stretch of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that is wrong with a program."""

    rule: str
    """What it was planted as."""
    mechanism: str
    levers: tuple[Lever, ...] = ()
    """Empty for what costs no time: its truth is declared."""
    always: bool = False
    """It is true as well where its levers gain nothing: what it costs beside is measured, as memory that is filled."""
    from_start: bool = False
    """It costs time before the training: counted against the wall time."""
    extra: bool = False
    """Meant to be harmless; measured all the same, together with the others."""

    @property
    def declared(self) -> bool:
        """Whether it is true though it may cost no time."""
        return self.always or not self.levers


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What a family makes of a plain program."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    causes: tuple[Cause, ...] = ()


def lever(name: str, rule: str, change: Mapping[str, Any], *, whole: bool = False) -> Lever:
    """Return the only lever of a cause: what was planted is gone."""
    return Lever(name=name, rules=(rule,), changes=(change,), whole=whole)


def gone(rule: str, mechanism: str, change: Mapping[str, Any], *, whole: bool = False) -> Cause:
    """Return a cause that one change removes."""
    return Cause(rule=rule, mechanism=mechanism, levers=(lever(f"no {rule}", rule, change, whole=whole),))


def quiet_host(program: Program) -> Lever:
    """Return the lever that takes the neighbours away."""
    return Lever(name="quiet host", rules=("noisy-neighbour",), changes=({"neighbours": 0.0},))


def cause_of(fields: Mapping[str, Any]) -> Cause:
    """Return the cause that `dataclasses.asdict` described."""
    levers = tuple(
        Lever(**{**lv, "rules": tuple(lv["rules"]), "changes": tuple(lv["changes"])}) for lv in fields["levers"]
    )
    return Cause(**{**fields, "levers": levers})
