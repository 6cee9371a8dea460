"""What all programs share: items that take their time, a step that does, and the program's own clock."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from .draws import Draw


class Items(Dataset[Any]):
    """Each item takes its share of what a batch takes, all of it in waiting."""

    def __init__(self, draw: Draw) -> None:
        self.count = draw.batches * draw.batch_size
        self.item_s = draw.batch_s / draw.batch_size
        self.store: Any = multiprocessing.Lock() if draw.alone else nullcontext()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        with self.store:
            time.sleep(self.item_s)
        return torch.full((4,), index % 7 / 7), torch.ones(1)


class HeldOut(Dataset[Any]):
    """Ready at once."""

    def __init__(self, draw: Draw) -> None:
        self.count = draw.held_out * draw.batch_size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.ones(4), torch.ones(1)


def make_loader(draw: Draw) -> DataLoader[Any]:
    return DataLoader(Items(draw), batch_size=draw.batch_size, **settings(draw))


def settings(draw: Draw) -> dict[str, Any]:
    return {"num_workers": draw.workers, "persistent_workers": bool(draw.workers)}


def held_out_loader(draw: Draw) -> DataLoader[Any] | None:
    return DataLoader(HeldOut(draw), batch_size=draw.batch_size) if draw.held_out else None


class Marks:
    """The program's own clock: what lies between two steps of an epoch, its hooks left out, is the wait."""

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.steps = 0
        self._ended: float | None = None
        self._hooks_s = 0.0

    def begin(self) -> None:
        """A step begins."""
        if self._ended is not None:
            self.wait_s += time.perf_counter() - self._ended - self._hooks_s
        self._hooks_s = 0.0

    def end(self) -> None:
        """It has ended."""
        self.steps += 1
        self._ended = time.perf_counter()

    def hook(self, seconds: float) -> None:
        """Wait, in a hook."""
        if seconds:
            began = time.perf_counter()
            time.sleep(seconds)
            self._hooks_s += time.perf_counter() - began

    def break_off(self) -> None:
        """Whatever comes next is no wait between two steps."""
        self._ended = None


class Slow(torch.nn.Module):
    """A model that takes its time: for a step when it trains, else for a batch of the validation."""

    def __init__(self, draw: Draw, marks: Marks) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.draw, self.marks = draw, marks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.draw.step_s if self.training else self.draw.held_out_s)
        return self.layer(x)
