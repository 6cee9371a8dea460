"""How long the loop's thread takes to choose the items of a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Sampler

import stallmeter
from stallmeter.recording import Reader
from stallmeter.records import LoaderInfo
from stallmeter.sources.loader.indices import IndexTimes

PAUSE_S = 0.004


class SlowSampler(Sampler[list[int]]):
    """Batches of two, each of which takes at least `PAUSE_S` to choose."""

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(40):
            time.sleep(PAUSE_S)
            yield [i, i + 1]

    def __len__(self) -> int:
        return 40


def loader(num_workers: int, **more: Any) -> DataLoader[int]:
    return DataLoader(list(range(41)), batch_sampler=SlowSampler(), num_workers=num_workers, **more)  # type: ignore[arg-type]


def test_each_answer_of_the_sampler_is_timed_and_handed_on() -> None:
    times, iterator = IndexTimes(), iter(loader(0))
    times.watch(iterator, 3)
    times.watch(iterator, 3)  # again for the same changes nothing
    assert [batch.tolist() for batch in iterator] == [[i, i + 1] for i in range(40)]
    spent_ns, count = times.taken[3]
    assert count == 40
    assert spent_ns >= 40 * PAUSE_S * 1e9


def test_it_is_told_once_known_and_when_it_changes() -> None:
    times = IndexTimes()
    assert times.to_tell(0, None) is None
    times.taken[0] = 15 * 1_000_000, 15
    assert times.to_tell(0, None) is None
    times.taken[0] = 20 * 1_000_000, 20
    assert times.to_tell(0, None) == pytest.approx(0.001)
    assert times.to_tell(0, 0.0012) is None
    assert times.to_tell(0, 0.003) == pytest.approx(0.001)


def test_what_is_no_sampler_is_left_alone() -> None:
    class Mine:
        _sampler_iter = iter([1])

    iterator, times = Mine(), IndexTimes()
    times.watch(iterator, 0)
    assert vars(iterator) == {}
    assert times.taken == {}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_run_tells_it(num_workers: int, tmp_path: Any) -> None:
    with stallmeter.Monitor(directory=tmp_path, trackers=None, hardware=False, console=False) as monitor:
        for _ in range(2):
            for _ in monitor.watch(loader(num_workers)):
                pass
    (folder,) = tmp_path.iterdir()
    told = [r.indices_s for r, _ in Reader(folder) if isinstance(r, LoaderInfo)]
    assert told[-1] is not None
    assert told[-1] >= PAUSE_S
