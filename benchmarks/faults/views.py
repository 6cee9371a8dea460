"""What it costs that workers send whole tensors: crops that are views of pictures, and the same crops cloned.

Each case is a size of picture, a number of workers and whether the loop computes or sleeps for its step. Both loaders
take turns in one process. What each byte costs that was sent for nothing, and what the rule ``views-sent-whole``
promises from the bytes alone, stand last.

    python -m benchmarks.faults.views [--sides S ...] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from stallmeter.rules.views_sent_whole import ViewsSentWhole
from stallmeter.workers.spare import MOST, of_the_wait_s

from .cases import NOISE, in_turn, measured

SIDES = (256, 512, 768, 1024, 2048)
"""Of a picture, in pixels of three bytes."""

CASES = tuple((workers, kind) for kind in ("computes", "sleeps") for workers in (1, 2))
CROP = 128
BATCH = 8
STEP_S = 0.02
ITEM_S = 0.001
"""CPU time of an item beside its picture."""


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="*", type=int, default=list(SIDES))
    parser.add_argument("--seconds", type=float, default=6.0, help="of all rounds of one setting")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        side, workers, kind = options.case
        print(json.dumps(_measure(int(side), int(workers), kind, seconds=options.seconds)))
        return
    print("side  workers  loop         views   (wait)     clones  a byte  faster  promised")
    inside = told = 0
    for side in options.sides:
        for workers, kind in CASES:
            said = measured(__spec__.name, side, workers, kind, seconds=options.seconds)
            spare = 3 * (side**2 - CROP**2) * BATCH
            step_s, wait_s, clone_s = said["step_s"], said["wait_s"], said["clone_s"]
            faster = step_s / clone_s
            saved = [min(s, MOST * step_s) for s in of_the_wait_s(spare, wait_s)]
            low, usual, high = (step_s / (step_s - s) for s in saved)
            is_told = 100.0 * saved[1] / step_s >= ViewsSentWhole().info_pct
            told += is_told
            inside += is_told and (1.0 - NOISE) * low <= faster <= (1.0 + NOISE) * high
            print(
                f"{side:4d} {workers:8d}  {kind:8s} {1e3 * step_s:6.1f} ms {1e3 * wait_s:6.1f} ms"
                f" {1e3 * clone_s:7.1f} ms {1e9 * (step_s - clone_s) / spare:4.2f} ns {faster:7.2f}"
                f"  {f'{usual:.2f} ({low:.2f} to {high:.2f})' if is_told else 'nothing'}",
                flush=True,
            )
    print(f"inside the interval, {100 * NOISE:.0f} % of noise allowed for: {inside} of {told}")


def _measure(side: int, workers: int, kind: str, *, seconds: float) -> dict[str, float]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    weights = torch.randn(300, 300)

    class Crops(Dataset[Any]):
        def __init__(self, *, clone: bool) -> None:
            self.clone = clone

        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, index: int) -> Any:
            picture = torch.full((3, side, side), index % 255, dtype=torch.uint8)
            end_s = time.thread_time() + ITEM_S
            while time.thread_time() < end_s:
                pass
            crop = picture[:, 10 : 10 + CROP, 10 : 10 + CROP]
            return crop.clone() if self.clone else crop

    def steps(clone: bool, number: int) -> tuple[float, float]:
        """Return the seconds of a step, and those of its data wait."""
        batches = iter(DataLoader(Crops(clone=clone), batch_size=BATCH, num_workers=workers, collate_fn=list))
        for _ in range(5):
            next(batches)
        waited_s, began_s = 0.0, time.perf_counter()
        for _ in range(number):
            at_s = time.perf_counter()
            batch = next(batches)
            waited_s += time.perf_counter() - at_s
            sum(float(crop[0, 0, 0]) for crop in batch)
            end_s = time.thread_time() + STEP_S
            while kind == "computes" and time.thread_time() < end_s:
                weights @ weights
            if kind == "sleeps":
                time.sleep(STEP_S)
        return (time.perf_counter() - began_s) / number, waited_s / number

    (step_s, wait_s), (clone_s, _) = in_turn(steps, seconds)
    return {"step_s": step_s, "wait_s": wait_s, "clone_s": clone_s}


if __name__ == "__main__":
    main()
