"""Sizes that suit the machine: what is planted has to outlast the step of this GPU, whichever it is."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import torch

from .cases import CASES, Records, Segmentation, Shape

HEALTHY = CASES[0]
INPUT_SPEED = 2.5
"""Healthy input comes so many times as fast as the GPU takes it; ten records read for one are then four times late."""
PREPARED = 4.0
"""The overloaded preprocessing takes so many times as long as the GPU's step, with all workers at work."""
AFTER_STEP = 1.3
"""The post-processing takes so many steps' time."""
REPEATS = 8
"""Of what is timed."""


def suited(shape: Shape, device: str) -> Shape:
    """Return the shape with times and counts that fit the device's step and this machine's CPUs.

    Args:
        shape: Sizes of the network and of its batches, which stay.
        device: Where the network is trained.
    """
    step_s = _step_s(shape, device)
    a_record_s = step_s * shape.workers / shape.batch
    return replace(
        shape,
        fetch_s=a_record_s / INPUT_SPEED,
        passes=max(1, round(PREPARED * a_record_s / _pass_s(shape))),
        images=max(1, round(AFTER_STEP * step_s / _image_s(shape))),
    )


def usable_workers() -> int:
    """Return how many workers leave two CPUs to the loop and to the thread that pins memory."""
    return max(1, len(os.sched_getaffinity(0)) - 2)


def _step_s(shape: Shape, device: str) -> float:
    model = Segmentation(HEALTHY, shape).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    frames = torch.rand(shape.batch, 3, shape.side, shape.side, device=device)
    masks = torch.zeros(shape.batch, shape.side, shape.side, dtype=torch.long, device=device)

    def steps_s() -> float:
        begun = time.perf_counter()
        for _ in range(REPEATS):
            model.training_step((frames, masks), 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    steps_s()  # the first ones choose algorithms and raise the clocks
    return steps_s() / REPEATS


def _pass_s(shape: Shape) -> float:
    """Of one convolution in a worker, which has one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        heavy = replace(HEALTHY, heavy=True, drop=0)
        records = Records(heavy, replace(shape, passes=REPEATS), 1)
        records[0]
        begun = time.perf_counter()
        records[0]
        return (time.perf_counter() - begun) / REPEATS
    finally:
        torch.set_num_threads(threads)


def _image_s(shape: Shape) -> float:
    side = 4 * shape.side
    begun = time.perf_counter()
    kept = [torch.randint(0, 256, (side, side, 3), dtype=torch.uint8) for _ in range(REPEATS)]
    return (time.perf_counter() - begun) / len(kept)
