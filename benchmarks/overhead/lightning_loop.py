"""Added time per step in Lightning, every contender switched on and off in turn within one fit.

The contenders share one process, one model and one loop; each runs for a short block of steps, blocks come in random
order, and a contender's cost is the median over rounds of (its block's median - the no-op callback's block median).
Medians of whole runs, or of long blocks, on a shared machine differ by more than what is measured here. The interval
beside it holds the true median with 95 % confidence, whatever the noise looks like (a sign test).

Beside the median stands the mean, with an interval by bootstrap: in it is what our sampler thread takes from the loop,
some milliseconds at once, which no median shows. Its ticks are given one second of "everything on" each, its verdicts
five, and the steps of those seconds alone. The CPU time of that thread in a second of them bounds the mean from above,
since Python runs one thread at a time, and does so without the noise of others.

    python benchmarks/overhead/lightning_loop.py [--rounds 1000] [--block 13] [--work-ms 0 1 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import random
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import intervals
import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import DeviceStatsMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.tracking import MlflowClient

from stallmeter.engine import collector
from stallmeter.lightning.unified import StallMonitor
from stallmeter.records.stats import percentile

CONTENDERS = (
    "nothing",
    "no-op callback",
    "two timestamps",
    "ledger alone",
    "everything on",
    "DeviceStatsMonitor",
    "SimpleProfiler",
    "MLflow system metrics",
)
now = time.perf_counter_ns


class Timestamps(L.Callback):
    """The least that a tool can do: the floor."""

    started = 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.started = now()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.took = now() - self.started


class Batches:
    """One batch, over and over: the loop's own cost is all there is."""

    def __init__(self, count: int) -> None:
        self.batch = torch.ones(4)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        for _ in range(self.count):
            yield self.batch


class Model(L.LightningModule):
    def __init__(self, submodules: int, work_s: float) -> None:
        super().__init__()
        self.work_ns = work_s * 1e9
        self.layer = torch.nn.Linear(4, 1)
        self.rest = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(submodules)))

    def training_step(self, batch, batch_idx):
        end = now() + self.work_ns
        while now() < end:
            pass
        return self.rest(self.layer(batch)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Switch(L.Callback):
    """Decides block by block which contender is in the trainer, and times every step from outside."""

    def __init__(self, ours: StallMonitor, block: int) -> None:
        self.ours = ours
        self.block = block
        self.times: dict[str, list[list[int]]] = {name: [] for name in CONTENDERS}
        self.current = ""
        self.last = 0
        self.seen = 0
        self.due_s = 1.0
        self.began_s = 0.0

    def on_train_start(self, trainer, pl_module):
        self.queue: list[str] = []
        self.profiler = trainer.profiler
        self.noop = L.Callback()
        self.timestamps = Timestamps()
        self.stats = DeviceStatsMonitor(cpu_stats=True)
        self.simple = SimpleProfiler()

    def take_over(self, trainer):
        self.run = self.ours.monitor.run
        self.patches = {k: v for k, v in vars(self.profiler).items() if k in ("profile", "start", "stop")}
        self.others = [cb for cb in trainer.callbacks if cb is not self.ours]
        self.ticking = False
        self.own_s = self.own_cpu_s = 0.0
        sampler = self.run.collector.sampler
        self.tick, sampler._tick = sampler._tick, self.tick_in_time
        sampler._interval_s = 0.05

    def tick_in_time(self):
        """Tick once a second of our own blocks."""
        if self.ticking and self.own_s + time.perf_counter() - self.began_s >= self.due_s:
            self.due_s += 1.0
            before_s = time.thread_time()
            self.tick()
            self.own_cpu_s += time.thread_time() - before_s

    def switch(self, trainer, name: str) -> None:
        for attribute in self.patches:
            vars(self.profiler).pop(attribute, None)
        self.run.clock.pause()
        if self.current == "everything on":
            self.own_s += time.perf_counter() - self.began_s
        if self.current == "ledger alone":
            self.run.clock.drain(sys.maxsize)
        self.began_s = time.perf_counter()
        trainer.profiler = self.simple if name == "SimpleProfiler" else self.profiler
        extra = {
            "no-op callback": [self.noop],
            "two timestamps": [self.timestamps],
            "DeviceStatsMonitor": [self.stats],
            "ledger alone": [self.ours],
            "everything on": [self.ours],
        }.get(name, [])
        if self.ours in extra:
            vars(self.profiler).update(self.patches)
        self.ticking = name == "everything on"
        trainer.callbacks = [*self.others, *extra]
        self.current = name

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        t = now()
        if batch_idx == 0:
            self.take_over(trainer)
        elif self.seen > 2:
            self.times[self.current][-1].append(t - self.last)
        self.seen += 1
        if batch_idx % self.block == 0:
            if not self.queue:
                self.queue = random.sample(CONTENDERS, len(CONTENDERS))
            self.switch(trainer, self.queue.pop())
            self.times[self.current].append([])
            self.seen = 0
        self.last = now()


def measure(rounds: int, block: int, submodules: int, work_s: float) -> tuple[dict[str, dict[str, float]], float]:
    steps = rounds * block * len(CONTENDERS)
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/mlflow.db"
        client = MlflowClient(uri)
        run = client.create_run(client.create_experiment("overhead")).info.run_id

        ours = StallMonitor(directory=folder, trackers=None, console=False)
        collector.VERDICT_EVERY_S = 5.0 * len(CONTENDERS)  # in seconds of all, five of our own
        switch = Switch(ours, block)
        system_metrics = SystemMetricsMonitor(run, sampling_interval=1, samples_before_logging=1, tracking_uri=uri)
        collect, publish = system_metrics.collect_metrics, system_metrics.publish_metrics
        # As with our own sampler: the thread ticks all the time and works only in its own blocks.
        system_metrics.collect_metrics = lambda: collect() if switch.current == "MLflow system metrics" else None
        system_metrics.publish_metrics = lambda found: publish(found) if found else None
        system_metrics.start()
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[switch, ours],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            num_sanity_val_steps=0,
            log_every_n_steps=50,
            logger=CSVLogger(folder),
        )
        trainer.fit(Model(submodules, work_s), Batches(steps))
        system_metrics.finish()
        ours.monitor.finish()
    return tabulate(switch.times), 100.0 * switch.own_cpu_s / switch.own_s


def tabulate(times: dict[str, list[list[int]]]) -> dict[str, dict[str, float]]:
    """Figures of each contender, µs, from its step times by block, ns."""
    table = {}
    for name in CONTENDERS:
        pairs = list(zip(times[name], times["no-op callback"], strict=True))
        every = sorted(t for b in times[name] for t in b)
        median = intervals.median([(statistics.median(a) - statistics.median(b)) / 1e3 for a, b in pairs])
        mean = intervals.mean([(statistics.fmean(a) - statistics.fmean(b)) / 1e3 for a, b in pairs])
        table[name] = {
            "median_us": statistics.median(every) / 1e3,
            "mean_us": statistics.fmean(every) / 1e3,
            "p99_us": percentile(every, 0.99) / 1e3,
            "over_noop_us": median.value,
            "over_noop_low_us": median.low,
            "over_noop_high_us": median.high,
            "mean_over_noop_us": mean.value,
            "mean_over_noop_low_us": mean.low,
            "mean_over_noop_high_us": mean.high,
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--block", type=int, default=13)
    parser.add_argument("--submodules", type=int, nargs="*", default=[10, 1000])
    parser.add_argument("--work-ms", type=float, nargs="*", default=[0.0, 1.0, 10.0])
    parser.add_argument("--json")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, lightning {L.__version__}, Python {platform.python_version()}")
    results = {}
    plans = [(n, arguments.work_ms[0]) for n in arguments.submodules]
    plans += [(arguments.submodules[0], work_ms) for work_ms in arguments.work_ms[1:]]
    for submodules, work_ms in plans:
        rounds = round(arguments.rounds / max(1.0, work_ms / 2))  # long steps vary less beside what is measured
        name = f"{submodules} submodules, {work_ms:g} ms of work a step"
        table, own_pct = measure(rounds, arguments.block, submodules, work_ms / 1e3)
        results[name] = {**table, "own thread": {"cpu_pct": own_pct}}
        print(f"\n{name}: {rounds} rounds of {arguments.block} steps each")
        print(
            f"{'':22s} {'median µs':>10s} {'mean µs':>10s} {'p99 µs':>10s} {'over no-op':>11s} {'95 %':>16s} "
            f"{'mean over it':>13s} {'95 %':>18s}"
        )
        for contender, row in table.items():
            print(
                f"{contender:22s} {row['median_us']:10.1f} {row['mean_us']:10.1f} {row['p99_us']:10.1f} "
                f"{row['over_noop_us']:+11.1f} {row['over_noop_low_us']:+7.1f} to {row['over_noop_high_us']:+5.1f} "
                f"{row['mean_over_noop_us']:+13.1f} {row['mean_over_noop_low_us']:+8.1f} to "
                f"{row['mean_over_noop_high_us']:+6.1f}",
                flush=True,
            )
        most_us = own_pct / 100 * table["everything on"]["median_us"]
        print(f"own thread: {own_pct:.2f} % of a CPU, at most {most_us:.1f} µs of a step that takes the median")
    if arguments.json:
        with Path(arguments.json).open("w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
