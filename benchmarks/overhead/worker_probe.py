"""What the loader probe costs: per batch in a worker, per batch in the loop thread, per poll in the sampler thread.

Everything is switched on and off in turn within one process, and a cost is the median over rounds of (on - off):
medians of whole runs on a shared machine differ by more than what is measured here.

    python benchmarks/overhead/worker_probe.py [--rounds 40] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch

from stallmeter.sources.loader import LoaderProbe, _new_ring
from stallmeter.sources.loader.worker import FetchTimer, _timed

now = time.perf_counter_ns


class Nothing(Dataset):
    """Items that cost nothing: the probe is all there is."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def first(items: list[int]) -> int:
    return items[0]


def per_call_us(call: Callable[[], object], calls: int) -> float:
    start = now()
    for _ in range(calls):
        call()
    return (now() - start) / calls / 1e3


def fetch_us(rounds: int) -> list[float]:
    """Added to one fetch in the worker's thread, with all its readings and the record written."""
    dataset = Nothing(8)
    plain = fetch._MapDatasetFetcher.fetch
    timed = _timed(plain, FetchTimer(dataset, _new_ring(1).writer(0)))
    off = fetch._MapDatasetFetcher(dataset, True, first, False)
    on = fetch._MapDatasetFetcher(dataset, True, first, False)
    return [
        per_call_us(lambda: timed(on, [0]), 2000) - per_call_us(lambda: plain(off, [0]), 2000) for _ in range(rounds)
    ]


def epoch_us(rounds: int) -> tuple[list[float], list[float]]:
    """One batch from a real worker through the queue, without and with the probe."""
    times: tuple[list[float], list[float]] = ([], [])
    probe = LoaderProbe()
    loader = DataLoader(Nothing(1500), batch_size=1, num_workers=1, collate_fn=first)
    for number in range(2 * rounds):
        on = number % 2
        probe.attach(loader) if on else probe.detach()
        iterator = iter(loader)
        for _ in range(100):
            next(iterator)
        times[on].append(per_call_us(lambda iterator=iterator: next(iterator), 1400))
        del iterator
        probe.sample(0.0)
    probe.close()
    return times


def queue_us(rounds: int) -> tuple[list[float], list[float]]:
    """Asking the prefetch queue before `next()`, and after it, with 16 batches in flight."""
    probe = LoaderProbe()
    iterator = iter(DataLoader(Nothing(64), batch_size=1, num_workers=2, prefetch_factor=8))
    next(iterator)
    time.sleep(0.3)
    probe.iterator_of = lambda: iterator
    asked = [per_call_us(probe.asked, 2000) for _ in range(rounds)]
    return asked, [per_call_us(probe.answered, 2000) for _ in range(rounds)]


def loop_us(rounds: int) -> list[float]:
    """Timing one batch in the loop thread, without workers."""
    probe = LoaderProbe()
    probe.in_loop = True

    def batch() -> None:
        probe.loop_before()
        probe.loop_after()

    times = []
    for _ in range(rounds):
        times.append(per_call_us(batch, 2000))
        probe.sample(0.0)
    probe.close()
    return times


def poll_us(rounds: int) -> list[float]:
    """One poll over 8 workers that wrote nothing since the last."""
    probe = LoaderProbe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have fewer workers than CPUs
        loader = DataLoader(Nothing(8), num_workers=8)
    probe.attach(loader)
    times = [per_call_us(lambda: probe.sample(0.0), 200) for _ in range(rounds)]
    probe.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the medians there too")
    options = parser.parse_args()
    rounds = options.rounds
    without, with_probe = epoch_us(max(4, rounds // 4))
    asked, answered = queue_us(rounds)
    medians = {
        "worker_fetch_us": statistics.median(fetch_us(rounds)),
        "end_to_end_without_us": statistics.median(without),
        "end_to_end_with_us": statistics.median(with_probe),
        "end_to_end_added_us": statistics.median(b - a for a, b in zip(without, with_probe, strict=True)),
        "asked_us": statistics.median(asked),
        "answered_us": statistics.median(answered),
        "loop_thread_us": statistics.median(loop_us(rounds)),
        "idle_poll_us": statistics.median(poll_us(rounds)),
    }
    print(f"Python {platform.python_version()}, torch {torch.__version__}, medians over {rounds} rounds")
    for name, value in medians.items():
        print(f"  {name:24s} {value:9.2f}")
    if options.json:
        options.json.write_text(json.dumps(medians, indent=2) + "\n")


if __name__ == "__main__":
    main()
