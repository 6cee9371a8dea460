"""Signals of what workers wait for, and whether they share it."""

from __future__ import annotations

import random

import pytest

from stallmeter.records import LoaderInfo, WorkerBatch, WorkerWaits
from stallmeter.window import Window
from stallmeter.window.sharing import growth
from stallmeter.window.waits import held


def looks(window: Window, polls: int, *, contended: int = 0, queued: int = 0, **kinds: int) -> None:
    for i in range(polls):
        window.append(
            WorkerWaits(
                time_s=float(i), looks=8, workers=sum(kinds.values()), contended=contended, queued=queued, **kinds
            )
        )  # fmt: skip


def test_threads_of_the_loop_are_none_of_a_workers() -> None:
    window = Window()
    window.append(LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=0))
    for i in range(20):
        window.append(WorkerBatch(worker=-1, time_s=float(i), wall_s=0.1, cpu_s=0.1, process_cpu_s=0.9))
    assert len(window.workers.batches) == 20
    assert window.workers.waits.threads is None


class TestKinds:
    def test_shares_are_of_the_blocked(self) -> None:
        window = Window()
        looks(window, 4, contended=8, queued=24, lock=24, sleep=6, running=2)

        waits = window.workers.waits
        assert waits.kinds == {"lock": 0.8, "sleep": 0.2, "threads": 0, "socket": 0, "file": 0, "other": 0}
        assert waits.lock_share == 0.8
        assert waits.lock_time_share == 0.75
        assert waits.contended_share == 1.0
        assert waits.lock_use == 1.0

    def test_a_few_looks_say_nothing(self) -> None:
        window = Window()
        looks(window, 2, contended=8, queued=24, lock=24, sleep=8)

        waits = window.workers.waits
        assert [waits.kinds, waits.lock_share, waits.lock_time_share, waits.contended_share, waits.lock_use] == [
            None
        ] * 5

    def test_workers_that_compute_wait_in_nothing(self) -> None:
        window = Window()
        looks(window, 9, running=32)

        assert window.workers.waits.kinds is None
        assert window.workers.waits.lock_use == 0.0

    def test_a_lock_met_at_one_moment_is_none(self) -> None:
        window = Window()
        looks(window, 9, sleep=32)
        looks(window, 1, contended=1, queued=1, lock=1, sleep=31)

        assert window.workers.waits.lock_use == 0.0


def wait_for_one_lock(workers: int, hold_s: float, between_s: float, seed: int) -> tuple[float, float]:
    """Shares of the time in which a lock is held, and in which somebody waits for it."""
    draw = random.Random(seed)
    now = held_s = contended_s = 0.0
    outside = [draw.expovariate(1 / between_s) for _ in range(workers)]
    line: list[int] = []
    left_s = 0.0
    for _ in range(20_000):
        comes = min((i for i in range(workers) if i not in line), key=lambda i: outside[i], default=None)
        step_s = min(outside[comes] - now if comes is not None else float("inf"), left_s if line else float("inf"))
        held_s += step_s * bool(line)
        contended_s += step_s * (len(line) > 1)
        now, left_s = now + step_s, left_s - step_s
        if comes is not None and outside[comes] <= now:
            line.append(comes)
            left_s = draw.expovariate(1 / hold_s) if len(line) == 1 else left_s
        elif line:
            outside[line.pop(0)] = now + draw.expovariate(1 / between_s)
            left_s = draw.expovariate(1 / hold_s)
    return held_s / now, contended_s / now


@pytest.mark.parametrize(
    ("workers", "hold_s", "between_s"), [(2, 1.0, 4.0), (4, 1.0, 4.0), (8, 1.0, 3.0), (3, 1.0, 0.1)]
)
def test_how_long_a_lock_is_held_follows_from_who_waits(workers: int, hold_s: float, between_s: float) -> None:
    use, contended = wait_for_one_lock(workers, hold_s, between_s, seed=workers)

    assert held(contended, workers) == pytest.approx(use, abs=0.05)


def test_a_lock_that_nobody_waits_for_is_not_known_to_be_held() -> None:
    assert held(0.0, 4) == 0.0


def batches(of: str, *, count: int = 240, workers: int = 4, drift: float = 0.0, seed: int = 0) -> list[WorkerBatch]:
    """Batches beside which 0 to 3 others were made: alone 40 ms, and 40 ms more for each that shares the store."""
    draw = random.Random(seed)
    made, slow = [], 0.0
    for i in range(count):
        ahead = draw.randrange(workers)
        slow = 0.95 * slow + drift * draw.gauss(0, 0.3)
        own_s = 0.04 * draw.uniform(0.7, 1.3) * (1 + max(-0.5, slow))
        wall_s = own_s * {"private": 1, "in line": 1 + ahead, "half": 1 + ahead / 8}[of]
        made.append(
            WorkerBatch(
                worker=i % workers, time_s=i + wall_s, wall_s=wall_s, cpu_s=0.001, run_queue_s=0.0, ahead=ahead,
                in_flight=1.0 + ahead,
            )
        )  # fmt: skip
    return made


class TestGrowth:
    def test_a_store_that_serves_one_at_a_time(self) -> None:
        found = growth(batches("in line"))

        assert found is not None
        assert found.shows_sharing
        assert found.per_worker_s == pytest.approx(0.04, rel=0.1)
        assert found.share > 0.9

    @pytest.mark.parametrize("seed", range(10))
    @pytest.mark.parametrize("drift", [0.0, 1.0])
    def test_waits_of_their_own_show_no_sharing(self, seed: int, drift: float) -> None:
        found = growth(batches("private", drift=drift, seed=seed))

        assert found is not None
        assert not found.shows_sharing

    def test_a_little_growth_is_not_called_sharing(self) -> None:
        found = growth(batches("half"))

        assert found is not None
        assert not found.shows_sharing

    def test_a_constant_number_at_work_shows_nothing(self) -> None:
        same = [
            WorkerBatch(worker=i % 4, time_s=float(i), wall_s=0.1 + i % 7 / 50, cpu_s=0.0, run_queue_s=0.0, ahead=3,
                        in_flight=4.0)
            for i in range(300)
        ]  # fmt: skip

        assert growth(same) is None

    def test_a_slow_hour_with_busy_workers_is_no_sharing(self) -> None:
        """Each batch waits for itself: because they take long, the loop waits, and then all workers are at work."""
        made = []
        for i in range(480):
            slow, since = i // 48 % 2, i % 48
            others = min(3, since // 3) if slow else i % 2
            made.append(
                WorkerBatch(
                    worker=i % 4, time_s=float(i), wall_s=0.2 if slow else 0.05, cpu_s=0.0, run_queue_s=0.0,
                    ahead=others, in_flight=1.0 + others,
                )
            )  # fmt: skip

        found = growth(made)

        assert found is not None
        assert not found.shows_sharing

    def test_records_without_the_number_at_work_say_nothing(self) -> None:
        old = [WorkerBatch(worker=i % 4, time_s=float(i), wall_s=0.1, cpu_s=0.0, run_queue_s=0.0) for i in range(300)]

        assert growth(old) is None
        assert growth([]) is None

    def test_the_window_answers_from_its_batches(self) -> None:
        window = Window()
        for batch in batches("in line"):
            window.append(batch)

        assert window.workers.waits.serial_share == pytest.approx(1.0, abs=0.1)
        assert window.workers.waits.at_work == pytest.approx(2.5, abs=0.2)
        assert Window().workers.waits.serial_s is None
