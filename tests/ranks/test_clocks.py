"""When steps began, by one clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.clocks import ahead_s, starts_s

from .synthetic import Program, always, late, train

OWN = {"data_wait": always(0.01), "backward": always(0.02), "callbacks": late(0.0, 0.03, {1})}


@pytest.mark.parametrize("hosts", [("a", "a"), ("a", "b"), ("", "")])
@pytest.mark.parametrize("ahead", [-4.0, 0.5])
def test_clocks_that_differ(hosts: tuple[str, str], ahead: float) -> None:
    """By one amount all the time: it is taken off, whatever the hosts are called."""
    ranks = train(Program(own=OWN, hosts=hosts, offset_s={1: ahead})).ranks
    offset_s, is_one_amount = ahead_s(ranks[1], ranks[0])
    assert offset_s == pytest.approx(ahead, abs=0.002)
    assert is_one_amount
    starts = starts_s(ranks)
    assert starts is not None
    # The hook of rank 1 comes after the exchange: it begins each step that much later.
    apart = [second - first for first, second in zip(*starts, strict=True)]
    assert apart[1:] == pytest.approx([0.03] * 199, abs=0.004)


def test_one_clock() -> None:
    ranks = train(Program(own=OWN, hosts=("a", "a"))).ranks
    assert ahead_s(ranks[1], ranks[0])[0] == pytest.approx(0.0, abs=0.001)
    starts = starts_s(ranks)
    assert starts is not None
    assert starts[1][5] - starts[0][5] == pytest.approx(0.03, abs=0.004)


@pytest.mark.parametrize("hosts", [("a", "b"), ("", "")])
def test_clocks_of_which_nothing_is_known(hosts: tuple[str, str]) -> None:
    """Apart by another amount in each step: they are of no use."""
    ranks = train(Program(own=OWN, hosts=hosts)).ranks
    drifting = replace(ranks[1], ends_s=[end + 0.01 * at for at, end in enumerate(ranks[1].ends_s)])
    assert starts_s([ranks[0], drifting]) is None
