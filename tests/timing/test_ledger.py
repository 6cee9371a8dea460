"""The ledger adds up, whatever happens to its spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stallmeter.timing.ledger import CALLBACKS, DATA_WAIT, FORWARD, LOOP, START, VALIDATION, Ledger, Span

from ..conftest import FakeTime


def test_time_is_exclusive(ledger: Ledger, fake_time: FakeTime) -> None:
    fake_time.sleep(1)
    ledger.base(LOOP)
    with Span(ledger, FORWARD):
        fake_time.sleep(2)
        with Span(ledger, ledger.slot(CALLBACKS, "Ema")):
            fake_time.sleep(3)
        fake_time.sleep(4)
    fake_time.sleep(5)
    ledger.settle()
    assert ledger.acc[START] == 1e9
    assert ledger.acc[FORWARD] == 6e9
    assert ledger.acc[ledger.slot(CALLBACKS, "Ema")] == 3e9
    assert ledger.acc[LOOP] == 5e9
    assert ledger.slots[ledger.slot(CALLBACKS, "Ema")] == (CALLBACKS, "Ema")


def test_a_span_nests_in_itself(ledger: Ledger, fake_time: FakeTime) -> None:
    span = Span(ledger, FORWARD)
    with span:
        fake_time.sleep(1)
        with span:
            fake_time.sleep(1)
        assert ledger.stack == [START, FORWARD]
    assert ledger.stack == [START]
    assert ledger.acc[FORWARD] == 2e9


def test_a_stop_without_a_start_is_ignored(ledger: Ledger) -> None:
    Span(ledger, FORWARD).__exit__(None, None, None)
    Span(ledger, START).__exit__(None, None, None)
    assert ledger.stack == [START]


def test_closing_an_outer_span_closes_those_inside(ledger: Ledger, fake_time: FakeTime) -> None:
    ledger.enter(VALIDATION)
    ledger.enter(DATA_WAIT)
    fake_time.sleep(1)
    ledger.exit(VALIDATION)
    assert ledger.stack == [START]
    assert ledger.acc[DATA_WAIT] == 1e9


def test_an_exception_closes_spans(ledger: Ledger, fake_time: FakeTime) -> None:
    try:
        with Span(ledger, FORWARD), Span(ledger, DATA_WAIT):
            fake_time.sleep(1)
            raise KeyError
    except KeyError:
        pass
    assert ledger.stack == [START]
    assert ledger.acc[DATA_WAIT] == 1e9


def test_peek_includes_the_open_span_and_changes_nothing(ledger: Ledger, fake_time: FakeTime) -> None:
    ledger.enter(FORWARD)
    fake_time.sleep(2)
    assert ledger.peek()[FORWARD] == 2e9
    assert ledger.acc[FORWARD] == 0


actions = st.lists(
    st.tuples(st.sampled_from(["enter", "exit", "base", "unwind", "named"]), st.integers(0, 13), st.integers(0, 10**9)),
    max_size=60,
)


@given(actions)
def test_buckets_sum_to_wall_time(steps: list[tuple[str, int, int]]) -> None:
    time = FakeTime()
    ledger = Ledger(now=time)
    start = time.ns
    for action, slot, wait in steps:
        time.ns += wait
        match action:
            case "enter":
                ledger.enter(slot)
            case "named":
                ledger.enter(ledger.slot(CALLBACKS, f"callback {slot}"))
            case "exit":
                ledger.exit(slot)
            case "base":
                ledger.base(slot)
            case "unwind":
                ledger.unwind()
        assert sum(ledger.peek()) == time.ns - start
        assert min(ledger.acc) >= 0
