"""The names of signals, and rules that need what is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from stallmeter import Monitor
from stallmeter.engine.options import Options
from stallmeter.errors import SettingError
from stallmeter.rules import ALL_RULES
from stallmeter.rules.rule import check_rules
from stallmeter.rules.slow_callback import SlowCallback
from stallmeter.window import Window
from stallmeter.window.signals import read_signal, signals


def test_every_signal_can_be_read():
    """By its name, which says where it is and in which unit; and each says what it is."""
    empty = Window()
    for name, says in signals().items():
        assert read_signal(empty, name) in (None, 0, [], {}, (), float("-inf")), name
        assert says, name
    assert {"gpu.utilization_pct", "gpu.memory.peak", "facts.accelerator", "steps.step_time_s"} <= set(signals())
    with pytest.raises(AttributeError):
        read_signal(empty, "gpu.utilisation_pct")


def test_a_part_fits_into_the_head():
    """No part has more than fifteen things to read or call, and the window no more than so many parts."""
    window = Window()
    parts = {n: p for n, p in vars(window).items() if type(p).__name__.endswith("Signals")}
    assert len(parts) <= 15
    for part in (window, *parts.values()):
        public = {n for n in (*vars(type(part)), *vars(part)) if not n.startswith("_")}
        assert len(public - {"memo", *(parts if part is window else ())}) <= 15, (type(part).__name__, sorted(public))


@dataclass(frozen=True)
class Needy:
    """A rule that needs what it is told."""

    id: ClassVar[str] = "needy"
    title: ClassVar[str] = "It needs what it is told"
    needs: Any

    def check(self, window: Window) -> None:
        """Find nothing."""


@pytest.mark.parametrize(
    ("needs", "error"),
    [
        (("gpu.utilisation_pct",), "rule needy needs 'gpu.utilisation_pct', .* did you mean 'gpu.utilization_pct'?"),
        (("data_wait_share_pct",), "did you mean 'spent.data_wait_share_pct'?"),
        (("gpu.step_time_s",), "did you mean 'steps.step_time_s'?"),
        (("ledger.bucket_s",), "is no signal"),
        (("gpu",), "is no signal"),
        (("xyz",), "signals.md lists them"),
        ((3,), "needs 3"),
        ("ledger.wall_s", "give a tuple"),
        (None, "has no needs; give a tuple"),
    ],
    ids=str,
)
def test_a_typo_fails_at_once(needs, error):
    """It would abstain in every run."""
    with pytest.raises(SettingError, match=error):
        check_rules([Needy(needs)])
    for known in (("ledger.wall_s", "gpu.memory.peak"), ()):
        check_rules([Needy(known)])


def test_monitors_look():
    """Both refuse the rule before anything is started."""
    rules = [Needy(("gpu.idel",))]
    with pytest.raises(SettingError, match="needy"):
        Monitor(rules=rules, trackers=None)  # type: ignore[list-item]
    pytest.importorskip("lightning")
    from stallmeter.lightning import StallMonitor

    with pytest.raises(SettingError, match="needy"):
        StallMonitor(rules=rules)  # type: ignore[list-item]


def test_no_rule():
    """Something without a check."""
    with pytest.raises(SettingError, match="no check"):
        check_rules([object()])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"id": ""}, "rule : id is ''; give a text"),
        ({"id": None}, "id is None; give a text, such as 'slow-logging'"),
        ({"title": 7}, "rule needy: title is 7; give a text"),
    ],
)
def test_a_rule_without_a_name(change, error):
    """It could not be told of."""
    with pytest.raises(SettingError, match=error):
        check_rules([type("Nameless", (Needy,), change)(())])


def test_two_rules_of_one_name():
    """Only one of them would be known by it: a copy with another threshold takes the place of the shipped one."""
    with pytest.raises(SettingError, match="two of the name 'slow-callback'; leave one"):
        Options(rules=(*ALL_RULES, SlowCallback(warn_pct=15.0)))


def test_what_a_rule_can_do_without_is_a_signal_too() -> None:
    class Curious(Needy):
        optional: ClassVar[tuple[str, ...]] = ("gpu.utilisation_pct",)

    with pytest.raises(SettingError, match=r"rule needy reads 'gpu.utilisation_pct', .* did you mean"):
        check_rules([Curious(needs=("ledger.wall_s",))])
