"""What is looked at beside workers: how many are at work, and what they wait in."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator

import pytest

from stallmeter.machine.blocked import Wait, is_known_here, waits_in
from stallmeter.records import WorkerBatch, WorkerWaits
from stallmeter.sources.loader import LoaderProbe
from stallmeter.sources.loader.in_flight import Company, InFlight, company
from stallmeter.sources.loader.ring import Fetch, Making
from stallmeter.sources.loader.waits import LOOKS, WaitLooks

torch = pytest.importorskip("torch")


def fetch(begin: int, end: int) -> Fetch:
    return Fetch(end, end - begin, 0, 0, 0, 0, 0, 0)


class TestCompany:
    def test_alone(self) -> None:
        assert company([(0, 10), (10, 20)]) == [Company(0, 1.0), Company(0, 1.0)]

    def test_what_is_there_before_and_meanwhile(self) -> None:
        first, second, third = company([(0, 10), (5, 15), (6, 10)])

        assert (first.ahead, second.ahead, third.ahead) == (0, 1, 2)
        assert first.in_flight == pytest.approx((5 + 2 * 1 + 3 * 4) / 10)
        assert second.in_flight == pytest.approx((2 + 3 * 4 + 5) / 10)
        assert third.in_flight == 3.0

    def test_a_batch_that_is_still_being_made_counts(self) -> None:
        assert company([(10, 20)], still=[15]) == [Company(0, 1.5)]

    def test_batches_read_later_meet_those_read_before(self) -> None:
        seen = InFlight()
        early = seen.beside([fetch(0, 10)], making=[Making(7, 4)])
        late = seen.beside([fetch(4, 24)], making=[])

        assert early == [Company(0, 1.6)]
        assert late == [Company(1, pytest.approx((2 * 6 + 14) / 20))]

    def test_a_batch_finished_while_the_others_are_read_counts_once(self) -> None:
        assert InFlight().beside([fetch(0, 10)], making=[Making(7, 0)]) == [Company(0, 1.0)]


def looks_at(
    states: Callable[[], dict[int, Wait | None]], making: Callable[[], list[Making]] | None = None
) -> WaitLooks:
    return WaitLooks(
        making or (lambda: [Making(pid, 1) for pid in states()]),
        waits_in=lambda pid: states()[pid],
        sleep=lambda seconds: None,
    )


def lock(address: str) -> Wait:
    return Wait("lock", f"futex {address}")


class TestLooks:
    def test_workers_are_counted_by_what_they_wait_in(self) -> None:
        states = {1: lock("0x10"), 2: lock("0x10"), 3: Wait("sleep"), 4: Wait("running"), 5: None}

        found = looks_at(lambda: dict(states)).sample(5.0, same_addresses=True)

        assert found == WorkerWaits(
            time_s=5.0, looks=LOOKS, workers=4 * LOOKS, lock=2 * LOOKS, sleep=LOOKS, running=LOOKS,
            queued=2 * LOOKS, contended=LOOKS,
        )  # fmt: skip

    def test_of_two_locks_the_one_waited_for_most_is_told(self) -> None:
        states = {1: lock("0x10"), 2: lock("0x10"), 3: lock("0x20")}

        found = looks_at(lambda: dict(states)).sample(5.0, same_addresses=True)

        assert found is not None
        assert (found.lock, found.queued, found.contended) == (3 * LOOKS, 2 * LOOKS, LOOKS)

    def test_spawned_workers_have_an_address_each_for_the_same_lock(self) -> None:
        states = {1: lock("0x10"), 2: lock("0x20")}

        found = looks_at(lambda: dict(states)).sample(5.0, same_addresses=False)

        assert found is not None
        assert found.queued == 2 * LOOKS

    def test_idle_workers_are_not_looked_at(self) -> None:
        assert looks_at(dict).sample(5.0, same_addresses=True) is None

    def test_a_batch_that_was_finished_meanwhile_is_left_out(self) -> None:
        began = iter(range(1, 1000))

        found = looks_at(lambda: {1: lock("0x10")}, lambda: [Making(1, next(began))]).sample(5.0, same_addresses=True)

        assert found is None

    def test_where_it_is_forbidden_nobody_looks_again(self) -> None:
        asked = []

        def forbid(pid: int) -> Wait | None:
            asked.append(pid)
            raise PermissionError

        looks = WaitLooks(lambda: [Making(1, 1)], waits_in=forbid, sleep=lambda seconds: None)

        assert [looks.sample(float(i), same_addresses=True) for i in range(3)] == [None] * 3
        assert asked == [1]

    def test_later_there_is_one_look_at_a_time(self) -> None:
        looks = looks_at(lambda: {1: Wait("sleep")})

        last = [looks.sample(float(i), same_addresses=True) for i in range(60)][-1]

        assert last is not None
        assert last.looks == 1


class Locked(torch.utils.data.Dataset):  # type: ignore[misc, name-defined, unused-ignore]
    """Holds one lock over each batch."""

    def __init__(self, lock: object) -> None:
        self.lock = lock

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        with self.lock:  # type: ignore[attr-defined]
            time.sleep(0.02)
        return index


def looked_at(probe: LoaderProbe) -> Iterator[object]:
    loader = torch.utils.data.DataLoader(
        Locked(multiprocessing.get_context("fork").Lock()), num_workers=3, multiprocessing_context="fork"
    )
    probe.attach(loader)
    for number, _ in enumerate(loader):
        if number % 8 == 4:
            yield from probe.sample(time.time())
    yield from probe.sample(time.time())


@pytest.mark.skipif(not is_known_here(), reason="only Linux shows what a process waits in")
def test_workers_that_wait_for_each_other_are_seen_at_the_lock() -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    child.start()
    try:
        visible = waits_in(child.pid or 0) is not None
    except PermissionError:
        visible = False
    finally:
        child.kill()
        child.join()
    if not visible:
        pytest.skip("this system does not let a parent look")
    probe = LoaderProbe()

    found = list(looked_at(probe))
    probe.close()

    looks = [record for record in found if isinstance(record, WorkerWaits)]
    # On a busy host whoever holds the lock may hold it for long, and others may not have come to it yet.
    assert sum(one.contended for one in looks) > 0.3 * sum(one.looks for one in looks) > 0
    assert sum(one.lock for one in looks) > 0.2 * sum(one.workers for one in looks)
    batches = [record for record in found if isinstance(record, WorkerBatch)]
    assert len(batches) == 64
    assert max(batch.in_flight or 0.0 for batch in batches) > 1.0
    assert {batch.ahead for batch in batches} <= {0, 1, 2}
