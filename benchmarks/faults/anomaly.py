"""What anomaly detection costs a step, and what looks at the training thread see of it.

Each case is a process of its own: a small network, its steps a few frames deep or thirty more, as below a framework.
Looks are those of a run with anomaly detection. The last columns are the rule ``debug-mode``'s: what it promises.

    python -m benchmarks.faults.anomaly [--networks N ...] [--seconds 3]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable

from .cases import measured, monitored

NETWORKS = {
    "second-order": (32, 128),
    "mlp": (64, 256),
    "attention": (32, 64),
    "cell": (32, 128),
    "conv": (64, 128),
    "operators": (32, 256),
}
"""And their widths."""

DEPTHS = (0, 30)
"""Frames between the loop and the step."""


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run with anomaly detection")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, width, depth = options.case
        print(json.dumps(_measure(name, int(width), int(depth), options.seconds)))
        return
    print("network            width depth   without     with   lost   seen  faster  promised")
    for name in options.networks:
        for width in NETWORKS[name]:
            for depth in DEPTHS:
                said = measured(__spec__.name, name, width, depth, seconds=options.seconds)
                print(f"{name:18s} {width:5d} {depth:5d} {_row(said)}", flush=True)


def _row(said: dict[str, float]) -> str:
    without, on = said["without_ms"], said["with_ms"]
    low, high = (1 + pct / 100 for pct in (said["low_pct"], said["high_pct"]))
    return (
        f"{without:6.2f} ms {on:5.1f} ms {100 * (1 - without / on):4.0f} % {said['seen_pct']:4.0f} %"
        f"  {on / without:6.2f}  {1 + said['gain_pct'] / 100:.2f} ({low:.2f} to {high:.2f})"
    )


def _measure(name: str, width: int, depth: int, seconds: float) -> dict[str, float]:
    import torch

    from stallmeter.rules.debug_mode import DebugMode

    torch.manual_seed(0)
    model, loss_of = _network(name, width)
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)

    def step(deeper: int) -> None:
        if deeper:
            step(deeper - 1)
            return
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    def step_s(batches: Iterable[int]) -> float:
        began, steps = time.perf_counter(), 0
        for _ in batches:
            step(depth)
            steps += 1
        return (time.perf_counter() - began) / steps

    step_s(range(5))
    torch.autograd.set_detect_anomaly(True)
    steps = max(30, int(seconds / step_s(range(10))))
    with monitored() as monitor:
        with_s = step_s(monitor.watch(range(steps)))
        time.sleep(1.2)  # the last looks are taken in
        window = monitor.run.window
        found = DebugMode().check(window)
        seen_s, training_s = window.code.torch.tracing_s, window.ledger.training_s
    torch.autograd.set_detect_anomaly(False)
    without_s = step_s(range(max(20, int(1 / step_s(range(5))))))
    advice = found.advice[0]
    low_pct, high_pct = advice.gain_interval_pct or (0.0, 0.0)
    return {
        "without_ms": 1e3 * without_s,
        "with_ms": 1e3 * with_s,
        "seen_pct": 100 * (seen_s or 0.0) / training_s,
        "gain_pct": advice.predicted_gain_pct or 0.0,
        "low_pct": low_pct,
        "high_pct": high_pct,
    }


def _network(name: str, width: int) -> tuple[object, Callable[[], object]]:
    import torch
    from torch import nn

    if name == "second-order":
        hidden = [part for _ in range(2) for part in (nn.Linear(width, width), nn.Tanh())]
        model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), *hidden, nn.Linear(width, 1))
        points = torch.rand(16 * width, 2, requires_grad=True)

        def residual() -> torch.Tensor:
            found = model(points)
            slopes = torch.autograd.grad(found.sum(), points, create_graph=True)[0]
            bends = torch.autograd.grad(slopes[:, 0].sum(), points, create_graph=True)[0][:, 0]
            return (slopes[:, 1] + found[:, 0] * slopes[:, 0] - 0.01 * bends).square().mean()

        return model, residual
    if name == "cell":
        cell, sequence = nn.GRUCell(width, width), torch.randn(40, 24, width)

        def unrolled() -> torch.Tensor:
            state = torch.zeros(24, width)
            for at in range(40):
                state = cell(sequence[at], state)
            return state.square().mean()

        return cell, unrolled
    if name == "operators":
        first, batch = nn.Linear(width, width), torch.randn(16, width)

        def waves() -> torch.Tensor:
            state = first(batch)
            for at in range(60):
                state = state + 0.01 * torch.sin(state) * at
            return state.square().mean()

        return first, waves
    if name == "mlp":
        model = nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(width, width), nn.ReLU())])
        batch = torch.randn(64, width)
    elif name == "attention":
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        model, batch = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(16, 24, width)
    else:
        channels = width // 8
        layers = [nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
        batch = torch.randn(16, 3, 32, 32)
    return model, lambda: model(batch).square().mean()


if __name__ == "__main__":
    main()
