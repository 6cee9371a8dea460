"""What forwarding does to a fast loop: 1 ms steps with no tracker, MLflow on sqlite, and MLflow over HTTP, in turn.

Every run is a monitor of its own with everything on and a point on each curve each second, ten times as many as by
default (``--period-s 10``, which needs longer runs). Runs alternate; quoted are medians over the rounds, and ratios to
the runs without a tracker in the same round.

    python benchmarks/overhead/forwarding.py [--rounds 5] [--seconds 8] [--period-s 1]
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from stallmeter import Monitor
from stallmeter.delivery.trackers.mlflow import MlflowTracker
from stallmeter.records.stats import percentile

now = time.perf_counter_ns
WORK_S = 0.001
CONTENDERS = ("no stallmeter", "no tracker", "MLflow on sqlite", "MLflow over HTTP")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run a tracking server on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "files")],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{uri}/health", timeout=1)
                    break
                except OSError:
                    time.sleep(0.1)
            yield uri
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.terminate()
            process.terminate()
            process.wait()


def run(name: str, seconds: float, period_s: float, folder: Path, uris: dict[str, str]) -> list[float]:
    """Train for some seconds and return the step times in µs, measured from outside."""
    batches = [torch.ones(8, 4)] * int(seconds / WORK_S)
    trackers = [MlflowTracker.create_run(uris[name])] if name in uris else None
    if name == "no stallmeter":
        return loop(batches)
    with Monitor(directory=folder / "runs", trackers=trackers, console=False, period_s=period_s) as monitor:
        monitor.run.ending.skip_reports()
        times = loop(monitor.watch(batches))
    monitor.finish()
    return times


def loop(batches) -> list[float]:
    """Run the loop; the work is a busy wait, which feels every other thread of the process."""
    times = []
    iterator = iter(batches)
    while True:
        started = now()
        try:
            next(iterator)
        except StopIteration:
            return times[200:]
        end = now() + WORK_S * 1e9
        while now() < end:
            pass
        times.append((now() - started) / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--period-s", type=float, default=1.0)
    arguments = parser.parse_args()
    medians: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    tails: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as name, server(Path(name)) as http:
        folder = Path(name)
        uris = {"MLflow on sqlite": f"sqlite:///{folder}/direct.db", "MLflow over HTTP": http}
        for contender in CONTENDERS:  # clients are imported, the database is made
            run(contender, 2.0, arguments.period_s, folder, uris)
        for _ in range(arguments.rounds):
            for contender in random.sample(CONTENDERS, len(CONTENDERS)):
                times = sorted(run(contender, arguments.seconds, arguments.period_s, folder, uris))
                medians[contender].append(statistics.median(times))
                tails[contender].append(percentile(times, 0.99))
    print(f"{'contender':20s} {'median µs':>10s} {'p99 µs':>10s} {'p99 / no tracker':>17s} {'p99 / nothing':>14s}")
    for contender in CONTENDERS:
        ratios = [
            statistics.median(a / b for a, b in zip(tails[contender], tails[base], strict=True))
            for base in ("no tracker", "no stallmeter")
        ]
        median, tail = statistics.median(medians[contender]), statistics.median(tails[contender])
        print(f"{contender:20s} {median:10.1f} {tail:10.1f} {ratios[0]:17.3f} {ratios[1]:14.3f}")


if __name__ == "__main__":
    main()
