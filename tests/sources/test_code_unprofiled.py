"""What was seen under a profiler, put right by what the same work takes without one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.sources.code.fold import Frame, Seen
from stallmeter.sources.code.unprofiled import MOST_COST, Part, unprofiled
from stallmeter.sources.code.whose import Function

PYTHON = Function("prepare", "train.py", True)
BUILTIN = Function("divmod", "", False, "divmod")


def part(function: Function, cpu_s: float, *, cost_s: float = 0.0, waits_s: float = 0.0, quick_s: float = 0.0) -> Part:
    """Time with one function."""
    return Part(Seen((Frame(function, 1),), cpu_s + waits_s, cpu_s), False, cost_s, quick_s)


def test_small_calls_and_a_loop():
    """What the loop is slowed down by is known better than two hundred thousand events: these take what is left."""
    loop, calls = part(PYTHON, 0.0116), part(BUILTIN, 0.007, cost_s=0.059)
    found = unprofiled([loop, calls], 0.0228, slower=1.77)
    assert [one.cpu_s for one in found] == [pytest.approx(0.0066, rel=0.03), pytest.approx(0.0162, rel=0.03)]
    assert sum(one.cpu_s or 0.0 for one in found) == pytest.approx(0.0228)


def test_code_and_a_library():
    """Without many events it is the speed of the code: what a library computes in one call is as quick as ever."""
    own, library = part(PYTHON, 0.010), part(BUILTIN, 0.010)
    found = unprofiled([own, library], 0.0165, slower=1.5)
    assert [one.cpu_s for one in found] == [pytest.approx(0.0065), pytest.approx(0.010)]


def test_waits_are_kept_and_what_was_never_slow_is_not_made_quicker():
    found = unprofiled([part(PYTHON, 0.010, waits_s=0.5, quick_s=0.004)], 0.007, slower=2.0)
    assert found[0].cpu_s == pytest.approx(0.007)
    assert found[0].wall_s == pytest.approx(0.507)
    assert unprofiled([part(BUILTIN, 0.010)], 0.001, slower=2.0)[0].cpu_s == 0.010, "nothing to be wrong about"
    assert unprofiled([], 0.001, slower=2.0) == []


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10)), max_size=8),
    st.floats(0, 100),
    st.floats(1, 3),
)
def test_it_stays_within_bounds(drawn, cpu_s, slower):
    """Nothing is negative, and nothing takes more than it was seen to, but for a part of what events cost."""
    parts = [
        part(PYTHON if python else BUILTIN, own_s, cost_s=cost_s, waits_s=waits_s)
        for python, own_s, cost_s, waits_s in drawn
    ]
    for before, after in zip(parts, unprofiled(parts, cpu_s, slower), strict=True):
        assert after.cpu_s is not None
        assert 0.0 <= after.cpu_s <= (before.seen.cpu_s or 0.0) + MOST_COST * before.cost_s + 1e-9
        assert after.wall_s - after.cpu_s == pytest.approx(before.seen.wall_s - (before.seen.cpu_s or 0.0), abs=1e-9)
