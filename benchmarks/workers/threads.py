"""What workers do to a loop that computes with several threads on the same CPUs, and what one thread does instead.

Each case runs on its own, without stallmeter: a small network on the CPU, batches that compute in Python, 0 to 3
workers with two threads and 0 to 2 with one. The model is asked with what was measured without workers.

    python -m benchmarks.workers.threads [--networks N ...] [--rounds R] [--seconds S] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from stallmeter.workers.model import Limits, LoaderCosts, predict_step_times_s
from stallmeter.workers.plan import best_plan, with_one_thread

NETWORKS = {"mlp": 30.0, "wide": 38.0, "conv": 24.0, "rnn": 34.0, "tiny": 8.0, "attention": 32.0, "normed": 20.0}
"""About what a step takes with two threads, ms. The last two were written after the model."""

RATIOS = (0.4, 1.0, 2.0)
"""CPU time of a batch, of that."""

CPUS = 2
ITEMS = 16
LEAST = 10
"""Steps of a run, however short it is to be."""

SETTINGS = [(0, 2), (1, 2), (2, 2), (3, 2), (0, 1), (1, 1), (2, 1)]
"""Workers, and threads of the loop."""


def main() -> None:
    """Measure what is asked for, in turn, and print each beside what the model says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--waits", type=float, default=0.0, help="a step stands still for so long, of its computing")
    parser.add_argument("--first", action="store_true", help="it stands still before it computes")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        network, ratio, workers, threads = options.case
        _run(network, float(ratio), int(workers), int(threads), options)
        return
    if hasattr(os, "sched_setaffinity"):  # what is measured is two threads on two CPUs, however many there are
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    rows = []
    for network in options.networks:
        for ratio in RATIOS:
            rows.append(_measure(network, ratio, options))
            _tell(rows[-1])
    errors = [abs(each["predicted_ms"] / each["step_ms"] - 1) for row in rows for each in row["settings"]]
    print(f"model: median error {100 * statistics.median(errors):.0f} % of {len(errors)} settings")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _measure(network: str, ratio: float, options: argparse.Namespace) -> dict[str, object]:
    step_ms, wait_ms = defaultdict(list), defaultdict(list)
    for _ in range(options.rounds):
        for workers, threads in SETTINGS:
            case = [network, str(ratio), str(workers), str(threads)]
            first = ["--first"] if options.first else []
            asked = ["--seconds", str(options.seconds), "--waits", str(options.waits), *first, "--case", *case]
            command = [sys.executable, "-m", "benchmarks.workers.threads", *asked]
            said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            step_ms[workers, threads].append(said["step_ms"])
            wait_ms[workers, threads].append(said["wait_ms"])
    batch_s = statistics.median(wait_ms[0, 2]) / 1e3
    work_s = statistics.median(step_ms[0, 2]) / 1e3 - batch_s
    still_s = options.waits * NETWORKS[network] / 1e3
    costs = LoaderCosts(
        current=0,
        work_s=work_s,
        service_s=batch_s,
        cpu_s=batch_s,
        loop_cpu_s=CPUS * (work_s - still_s),
        blocked_s=still_s,
        step_time_s=work_s + batch_s,
        batches=100,
    )
    limits = Limits(available_cpus=CPUS)
    plan = best_plan(costs, limits)
    predicted_s = {
        2: predict_step_times_s(costs, limits, 3),
        1: predict_step_times_s(with_one_thread(costs, limits), limits, 2),
    }
    return {
        "network": network,
        "ratio": ratio,
        "waits": options.waits,
        "advice": {"workers": plan.best.workers, "torch_threads": plan.torch_threads or 2},
        "settings": [
            {
                "workers": workers,
                "torch_threads": threads,
                "step_ms": round(statistics.median(step_ms[workers, threads]), 1),
                "predicted_ms": round(1e3 * predicted_s[threads][workers], 1),
            }
            for workers, threads in SETTINGS
        ],
    }


def _tell(row: dict[str, object]) -> None:
    settings: list[dict[str, float]] = row["settings"]  # type: ignore[assignment]
    now_ms = settings[0]["step_ms"]
    said = [
        f"{each['workers']}w/{each['torch_threads']}t {each['step_ms']:.1f} ({each['predicted_ms']:.1f})"
        for each in settings
    ]
    advised = tuple(row["advice"].values())  # type: ignore[attr-defined]
    (found,) = [each for each in settings if (each["workers"], each["torch_threads"]) == advised]
    best_ms = min(each["step_ms"] for each in settings)
    print(f"{row['network']} x{row['ratio']}: ms (predicted): {', '.join(said)}")
    print(
        f"   advised {advised[0]} workers, {advised[1]} threads: {now_ms / found['step_ms']:.2f} x as fast as now, "
        f"predicted {now_ms / found['predicted_ms']:.2f}; best measured {now_ms / best_ms:.2f}",
        flush=True,
    )


def _run(network: str, ratio: float, workers: int, threads: int, options: argparse.Namespace) -> None:
    """Train for so long, and print the mean step and wait of all but the first fifth."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    item_s = ratio * NETWORKS[network] / ITEMS / 1e3
    still_s = options.waits * NETWORKS[network] / 1e3

    class Python(Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            end, total = time.thread_time() + item_s, 0
            while time.thread_time() < end:
                for j in range(200):
                    total += j * j
            return torch.full((64,), float(index % 7)), index % 3

    model, prepared = network_of(network)
    optimizer = torch.optim.Adam(model.parameters())
    steps_s, waits_s = [], []
    begun = time.perf_counter()
    batches = iter(DataLoader(Python(), batch_size=ITEMS, num_workers=workers))
    while time.perf_counter() - begun < options.seconds or len(steps_s) < LEAST:
        asked = time.perf_counter()
        inputs, targets = next(batches)
        got = time.perf_counter()
        if options.first:
            time.sleep(still_s)
        inputs = prepared(inputs)
        loss = torch.nn.functional.cross_entropy(model(inputs), targets.repeat(len(inputs) // ITEMS))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not options.first:
            time.sleep(still_s)
        steps_s.append(time.perf_counter() - asked)
        waits_s.append(got - asked)
    warm = max(LEAST // 2, len(steps_s) // 5)
    said = {"step_ms": 1e3 * statistics.fmean(steps_s[warm:]), "wait_ms": 1e3 * statistics.fmean(waits_s[warm:])}
    print(json.dumps(said), flush=True)
    os._exit(0)  # workers that have 100,000 items ahead of them need not be waited for


def network_of(name: str) -> tuple[object, Callable[[object], object]]:
    from torch import nn

    relu = nn.ReLU
    if name == "mlp":
        hidden = [nn.Linear(64, 1024), relu(), nn.Linear(1024, 1024), relu(), nn.Linear(1024, 1024), relu()]
        return nn.Sequential(*hidden, nn.Linear(1024, 3)), lambda x: x.repeat(16, 1)
    if name == "wide":
        hidden = [nn.Linear(64, 2048), relu(), nn.Linear(2048, 2048), relu()]
        return nn.Sequential(*hidden, nn.Linear(2048, 3)), lambda x: x.repeat(8, 1)
    if name == "conv":
        channels = ((1, 16), (16, 32), (32, 32))
        layers = [part for a, b in channels for part in (nn.Conv2d(a, b, 3, padding=1), relu())]
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))
        return nn.Sequential(*layers, *head), lambda x: x.view(-1, 1, 8, 8).repeat(1, 1, 5, 5)
    if name == "rnn":

        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cells, self.head = nn.GRU(8, 128, batch_first=True, num_layers=2), nn.Linear(128, 3)

            def forward(self, inputs: object) -> object:
                return self.head(self.cells(inputs)[0][:, -1])

        return Recurrent(), lambda x: x.view(-1, 8, 8).repeat(4, 4, 1)
    if name == "attention":

        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
                self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 3)

            def forward(self, inputs: object) -> object:
                return self.head(self.encoder(inputs).mean(1))

        return Attention(), lambda x: x.view(-1, 1, 64).repeat(1, 160, 1)
    if name == "normed":
        channels = ((1, 24), (24, 24))
        layers = [
            part for a, b in channels for part in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.LeakyReLU())
        ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24 * 256, 3)), lambda x: x.view(-1, 1, 8, 8).repeat(
            8, 1, 2, 2
        )
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(12)]
    return nn.Sequential(*blocks, nn.Linear(64, 3)), lambda x: x.repeat(32, 1)


if __name__ == "__main__":
    main()
