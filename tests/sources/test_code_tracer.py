"""Every call of one thread, and the lines of single functions, timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stallmeter.sources.code import calls
from stallmeter.sources.code import tracer as tracers
from stallmeter.sources.code.calls import Node
from stallmeter.sources.code.fold import fold
from stallmeter.sources.code.lines import LineTimer
from stallmeter.sources.code.tracer import CallTracer, _Costs, why_not
from stallmeter.sources.code.whose import Whose

ROOM = 1_000_000


def _traced(call: Any, events: int = ROOM) -> CallTracer:
    tracer = CallTracer(Whose.of_program())
    tracer.weigh()
    tracer.begin(events)
    call()
    assert tracer.end()
    assert sys.getprofile() is None
    return tracer


def waits() -> None:
    time.sleep(0.02)


def outer() -> None:
    waits()
    sorted(range(10), key=inner)


def inner(x: int) -> int:
    return -x


def numbers() -> Iterator[int]:
    for i in range(5):
        time.sleep(0.002)
        yield i


def fails() -> None:
    raise ValueError


def caught() -> None:
    for _ in range(3):
        try:
            fails()
        except ValueError:
            time.sleep(0.005)


def test_waiting_and_computing_are_told_apart():
    found = fold(_traced(outer).seen())
    first = found.spots[0]
    assert (first.function, first.calls) == ("waits", ("time.sleep",))
    assert first.line == waits.__code__.co_firstlineno + 1
    assert first.wall_s >= 0.02
    assert first.cpu_s is not None
    assert first.cpu_s < first.wall_s / 2


def test_what_a_library_calls_back_keeps_its_place():
    stacks = [stack.frames for stack in fold(_traced(outer).seen()).stacks]
    assert any([f.split(" ")[0] for f in frames[-3:]] == ["outer", "sorted", "inner"] for frames in stacks)


def test_generators_and_exceptions_leave_the_stack_as_it_was():
    found = fold(_traced(lambda: (list(numbers()), caught())).seen())
    assert [spot.function for spot in found.spots[:2]] == ["caught", "numbers"] or {
        spot.function for spot in found.spots[:2]
    } == {"caught", "numbers"}


def test_recursion_and_its_depth_are_bounded():
    def deep(n: int) -> int:
        return n if n == 0 else deep(n - 1)

    assert fold(_traced(lambda: deep(600)).seen()).spots[0].function.endswith("deep")


def test_too_many_calls_are_cut_and_gone_on_with():
    tracer = CallTracer(Whose.of_program())

    def batch() -> None:
        for i in range(2000):
            inner(i)
        assert tracer.is_cut
        tracer.resume(1000)
        waits()

    tracer.begin(500)
    batch()
    assert tracer.end()
    assert fold(tracer.seen()).spots[0].function in ("waits", batch.__qualname__)


def pairs(most: int) -> int:
    """Calls a builtin again and again, and is the last to do anything."""
    return sum(min(i, most) for i in range(60_000))


def test_what_has_too_many_calls_to_be_seen_to_its_end_is_not_made_small():
    tracer = CallTracer(Whose.of_program())

    def batch() -> None:
        waits()
        pairs(7)

    tracer.begin(500)
    batch()
    assert tracer.end()
    assert tracer.is_cut
    spots = {spot.function: spot.wall_s for spot in fold(tracer.seen()).spots}
    assert spots["pairs"] > 0.001  # a hundredth of its calls was seen


def test_what_events_cost_is_taken_off_once_where_the_rest_goes_by_unseen() -> None:
    """What went by unseen was like what two functions took, not like what the one of many calls was seen to take."""
    code = test_what_events_cost_is_taken_off_once_where_the_rest_goes_by_unseen.__code__
    root, plain, calls, builtin = Node(), Node(code), Node(code), Node(None)
    root.callees = {"plain": plain, "calls": calls}
    calls.callees = {"builtin": builtin}
    plain.wall_ns, plain.events = 2_000_000, 0
    calls.wall_ns, builtin.wall_ns, builtin.events = 3_000_000, 3_000_000, 20_000
    calls.events = 20_000
    costs = _Costs(call_ns=100.0, builtin_ns=100.0, slower=2.0)
    tracers._take_off(root, costs)
    assert (plain.quick_ns, calls.quick_ns, builtin.quick_ns) == (1_000_000, 500_000, 1_000_000)
    assert builtin.cost_ns == 2_000_000
    tracers._scale(root, 3.0)
    assert tracers._total_ns(root) == pytest.approx(7_500_000)
    tracers._take_off(root, costs)
    assert tracers._total_ns(root) == pytest.approx(7_500_000), "nothing twice"


def test_whoever_else_looks_is_named():
    assert why_not() is None or sys.gettrace() is not None
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        assert why_not() == "another profiler is active"
    finally:
        sys.setprofile(before)


def other(*_: Any) -> None:
    """Somebody else's profile function, or trace function."""


def test_a_profiler_that_is_active_is_left_alone():
    """To make a tracer, to weigh what it costs and to go on with a batch touches nobody's profiler."""
    tracer = CallTracer(Whose.of_program())
    tracer.begin(10)
    pairs(7)
    assert tracer.is_cut
    sys.setprofile(other)
    try:
        CallTracer(Whose.of_program())
        tracer.weigh()
        tracer.resume(ROOM)
        assert sys.getprofile() is other
        assert tracer.end()
        assert sys.getprofile() is other
        assert fold(tracer.seen()).wall_s > 0
    finally:
        sys.setprofile(None)


def test_another_trace_function_is_left_alone_where_there_are_too_many_lines():
    timer = LineTimer([replaces.__code__], 10)
    before = sys.gettrace()
    try:
        timer.begin()
        replaces()
        assert sys.gettrace() is other
        timer.end()
        assert sys.gettrace() is other
    finally:
        sys.settrace(before)


def replaces() -> None:
    sys.settrace(other)
    for _ in range(20):
        time.sleep(0)


def test_a_profiler_that_came_meanwhile_is_left_alone():
    tracer = CallTracer(Whose.of_program())
    tracer.begin(ROOM)
    sys.setprofile(other)
    try:
        assert not tracer.end()
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)


def test_quicker_code_is_taken_for_what_it_takes_without_a_profiler():
    def loop() -> int:
        return sum(i * i for i in range(20_000))

    tracer = _traced(loop)
    as_seen = sum(one.cpu_s or 0.0 for one in tracer.seen())
    assert sum(one.cpu_s or 0.0 for one in tracer.seen((as_seen / 100, 0.0))) <= as_seen
    assert sum(one.cpu_s or 0.0 for one in tracer.seen((as_seen, 0.0))) == pytest.approx(as_seen)


def test_what_is_known_apart_is_put_right_apart():
    """Of a batch it is known what its items take, and what putting them together takes."""

    def items() -> int:
        return sum(i * i for i in range(20_000))

    def collate() -> int:
        return inner()

    def inner() -> int:
        return sum(i * i for i in range(20_000))

    tracer = CallTracer(Whose.of_program(), collate.__code__)
    tracer.weigh()
    tracer.begin(ROOM)
    (lambda: (items(), collate()))()
    assert tracer.end()

    def spent(cpu_s: tuple[float, float] | None) -> dict[str, float]:
        found = fold(tracer.seen(cpu_s)).spots
        return {spot.function.rpartition(".")[2]: spot.cpu_s or 0.0 for spot in found}

    seen, known = spent(None), spent((0.0, 1e9))
    assert known["inner"] >= seen["inner"]
    assert known["items"] <= seen["items"] / 1.29  # the least that a profiler may have slowed it down by
    other = spent((1e9, 0.0))
    assert other["items"] >= seen["items"]
    assert other["inner"] <= seen["inner"] / 1.29


def two_lines() -> None:
    time.sleep(0.001)
    time.sleep(0.01)


def test_lines_are_timed_with_what_they_call():
    before = sys.gettrace()
    timer = LineTimer([two_lines.__code__], ROOM)
    sys.settrace(None)
    try:
        timer.begin()
        two_lines()
        outer()
        assert timer.end()
    finally:
        sys.settrace(before)
    ((code, lines_s),) = timer.lines_s
    first = two_lines.__code__.co_firstlineno
    assert code is two_lines.__code__
    assert max(lines_s, key=lines_s.__getitem__) == first + 2
    assert set(lines_s) <= {first, first + 1, first + 2}


def loops(count: int) -> None:
    for _ in range(count):
        pass


def then_loops() -> None:
    loops(100)
    for _ in range(20):
        pass


def test_a_loop_in_one_function_leaves_room_for_the_lines_of_the_others():
    """Nor is what goes by unseen any line's: the one that called it would have it."""
    before = sys.gettrace()
    timer = LineTimer([loops.__code__, then_loops.__code__], 300)
    sys.settrace(None)
    try:
        timer.begin()
        loops(10_000)
        then_loops()
        assert sys.gettrace() is not None
        assert timer.end()
    finally:
        sys.settrace(before)
    lines_s = {code: set(found) for code, found in timer.lines_s}
    first = then_loops.__code__.co_firstlineno
    assert lines_s[then_loops.__code__] == {first, first + 1, first + 2, first + 3}
    assert loops.__code__.co_firstlineno + 1 in lines_s[loops.__code__]


def test_too_many_lines_are_cut():
    before = sys.gettrace()
    timer = LineTimer([two_lines.__code__], 3)
    sys.settrace(None)
    try:
        timer.begin()
        two_lines()
        two_lines()
        assert timer.end()
        assert sys.gettrace() is None
    finally:
        sys.settrace(before)


def test_events_are_taken_off_by_what_each_kind_of_them_costs() -> None:
    """A function that calls two builtins and one function of its own, and returns."""
    code = test_events_are_taken_off_by_what_each_kind_of_them_costs.__code__
    outer, builtin, inner = Node(code), Node(None), Node(code)
    outer.callees = {"builtin": builtin, "inner": inner}
    builtin.events, inner.events, outer.events = 2, 1, 4
    costs = _Costs(call_ns=100.0, builtin_ns=10.0, slower=1.0)
    assert costs.of(builtin) == 2 * 10
    assert costs.of(inner) == 100
    assert costs.of(outer) == 2 * 10 + 2 * 100


def test_a_function_of_many_small_calls_keeps_some_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However dear an event is said to be: the rest would be the difference of two large numbers."""
    monkeypatch.setattr("stallmeter.sources.code.tracer._costs", lambda: _Costs(1e9, 1e9, 1.0))
    found = fold(_traced(lambda: [divmod(k, 7) for k in range(500)]).seen())
    assert found.wall_s > 0
    assert found.spots[0].own


class _Stolen:
    """Clocks of a thread that loses its CPU for a while at the n-th reading of the clock, where nobody computes."""

    def __init__(self, at: int) -> None:
        self.wall_ns = self.queued_ns = 0
        self._left = at

    def wall(self) -> int:
        self._left -= 1
        before = self.wall_ns
        if self._left == 0:  # after it was read
            self.wall_ns += 4_000_000
            self.queued_ns += 4_000_000
        return before


@pytest.mark.parametrize("at", range(1, 16))
def test_a_cpu_that_is_lost_while_the_profiler_works_is_not_taken_off_what_the_program_waits(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    clock = _Stolen(at)
    monkeypatch.setattr(calls, "perf_counter_ns", clock.wall)
    monkeypatch.setattr(calls, "thread_time_ns", lambda: 0)
    root, frame = Node(), sys._getframe()
    callback, _ = calls.profile_function(root, calls.Budget(ROOM), Whose.of_program(), lambda: clock.queued_ns)
    for _ in range(4):
        callback(frame, "c_call", time.sleep)
        clock.wall_ns += 5_000_000
        callback(frame, "c_return", time.sleep)
    [slept] = root.callees.values()
    assert clock.queued_ns == 4_000_000
    assert 4 * 5_000_000 <= slept.wall_ns <= 4 * 5_000_000 + 4_000_000
