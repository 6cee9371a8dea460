"""Runs a program: Lightning's Trainer, a plain loop, and plain loops whose loader Fabric or Accelerate has wrapped.

Nothing here knows the tool under test: it is handed in as callbacks (Lightning) or as something that watches loaders
and names spans (`Tool`).
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, TensorDataset

from .program import Program
from .work import burn, touched, wait


class Tool(Protocol):
    """What watches a plain loop."""

    def watch(self, loader: Iterable[Any], stage: str = "train") -> Iterable[Any]:
        """Wrap what the loop iterates over."""

    def span(self, bucket: str, name: str | None = None) -> AbstractContextManager[Any]:
        """Name what the block does."""


class Nobody:
    """Nothing watches."""

    def watch(self, loader: Iterable[Any], stage: str = "train") -> Iterable[Any]:
        """Return the loader."""
        return loader

    def span(self, bucket: str, name: str | None = None) -> AbstractContextManager[Any]:
        """Return a block without a meaning."""
        return nullcontext()


CAPPED_STEPS = 40
"""A run that is cut off has at least so many."""


class EnoughError(Exception):
    """The run was only to last so long."""


class Marks:
    """When steps ended, on one clock; ends a run that has lasted long enough.

    Args:
        cap_s: Seconds after the first step from which the run is cut off, by an exception; None lets it end.
        gentle_s: Seconds from which the loop should end as if it were done.
    """

    def __init__(self, cap_s: float | None, gentle_s: float) -> None:
        self.cap_s = cap_s
        self.gentle_s = gentle_s
        self.began = time.perf_counter()
        self.ends: list[float] = []
        self.last = 0.0

    def step(self) -> bool:
        """Note the end of a step; returns whether the loop should end."""
        now = time.perf_counter()
        self.ends.append(now - self.began)
        self.last = self.ends[-1]
        since = self.ends[-1] - self.ends[0]
        if self.cap_s is not None and since > self.cap_s and len(self.ends) >= CAPPED_STEPS:
            raise EnoughError
        return since > self.gentle_s

    def note(self) -> None:
        """Note the end of something that belongs to the training, such as a validation."""
        self.last = time.perf_counter() - self.began


class Device(torch.nn.Module):
    """The accelerator: a layer that takes its time, or computes for it."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.matrix = torch.ones(96, 96) / 96
        self.busy = program.device == "matmul"

    def forward(self, items: torch.Tensor, seconds: float) -> torch.Tensor:
        if not self.busy:
            wait(seconds)
            return items
        until = time.thread_time() + seconds
        with torch.no_grad():
            while time.thread_time() < until:
                self.matrix @ self.matrix
        return items


class Step:
    """What a training step does besides Lightning's or the loop's own part: the same in every loop."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.device = Device(program)
        self.layer = torch.nn.Linear(16, 1)
        self.count = 0
        self.total = program.steps * program.epochs
        self.kept: list[Any] = []
        self.opened: list[int] = []
        self.history: list[float] = []
        self.heap = [{"at": [i]} for i in range(program.garbage // 2)]
        self.buffer: list[Any] = []
        self.weights = torch.zeros(program.weights_bytes // 4)
        net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
        self.net = net if not program.shapes else _compiled(net)
        if program.gc_off:
            gc.disable()

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        program, at = self.program, self.count
        items = first_tensor(batch).reshape(len(first_tensor(batch)), -1)[:, :16]
        items = self.device(items, program.device_s)
        if program.first_steps and at < program.first_steps:
            wait(program.first_step_s / program.first_steps)
        if program.pause_every and at % program.pause_every == program.pause_every // 2:
            wait(program.pause_s)
        if program.drift_s and program.drift != "callback":
            self._drift(at)
        if program.shapes:
            length = 1 + (at * 7) % program.shapes if program.shapes > 1 else program.shapes
            items = self.net(items[:1].repeat(length, 1)).mean(0, keepdim=True)
        if program.leak_bytes:
            self.kept.append(touched(program.leak_bytes))
        while len(self.opened) < program.leak_files * (at + 1) // self.total:
            self.opened.append(os.open(os.devnull, os.O_RDONLY))
        if program.garbage:
            self._make_garbage()
        self.count += 1
        return self.layer(items).mean()

    def _drift(self, at: int) -> None:
        seconds = self.program.drift_s * at / self.total
        if self.program.drift == "sleep":
            wait(seconds)
            return
        # Longer by so many entries that each step's walk takes what the drift says at some 25 ns an entry.
        self.history += [float(at)] * int(self.program.drift_s / self.total / 25e-9)
        total = 0.0
        for value in self.history:
            total += value

    def after(self) -> None:
        """Do what callbacks do after a batch."""
        program = self.program
        if program.callback_s:
            (wait if program.callback == "sleep" else burn)(program.callback_s)
        if program.drift_s and program.drift == "callback":
            wait(program.drift_s * self.count / self.total)

    def _make_garbage(self) -> None:
        program = self.program
        if program.garbage_every:
            if self.count % program.garbage_every == program.garbage_every - 1 and not program.gc_off:
                gc.collect()
            return
        self.buffer += [{"at": [i]} for i in range(program.garbage // 16)]
        if len(self.buffer) > program.garbage // 2:
            del self.buffer[: program.garbage // 4]


def _compiled(net: torch.nn.Module) -> Any:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.accumulated_recompile_limit = 1000
    return torch.compile(net, backend="eager", dynamic=False)


def first_tensor(batch: Any) -> torch.Tensor:
    """Return the tensor that a batch is, or its first one."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return batch


def validation_loader(program: Program) -> DataLoader:
    """Return the loader of the validation."""
    return DataLoader(TensorDataset(torch.zeros(program.validate_steps, 16)), num_workers=program.validate_workers)


def run_plain(program: Program, make_loader: Callable[[], Any], tool: Tool, marks: Marks, folder: Path) -> None:
    """Train in a loop of its own; its parts are named to the tool as its documentation asks."""
    wait(program.setup_s)
    step = Step(program)
    optimizer = torch.optim.SGD(step.layer.parameters(), lr=1e-3)
    wait(program.prepare_s)
    loader = make_loader()
    backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward
    if program.loop == "fabric":
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=1)
        loader, backward = fabric.setup_dataloaders(loader), fabric.backward
    elif program.loop == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        loader, backward = accelerator.prepare(loader), accelerator.backward
    held_out = validation_loader(program) if program.validate_every else None
    for _ in range(program.epochs):
        for taken, batch in enumerate(tool.watch(loader), 1):
            loss = step.forward(batch)
            backward(loss)
            if taken % program.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            _between(program, step, tool, folder)
            if held_out is not None and step.count % program.validate_every == 0:
                for _batch in tool.watch(held_out, stage="validation"):
                    wait(program.validate_s)
                marks.note()
            if marks.step():
                return
            if taken >= program.steps:
                break


def _between(program: Program, step: Step, tool: Tool, folder: Path) -> None:
    with tool.span("callbacks", "after_batch"):
        step.after()
    if program.logger_s and step.count % program.log_every == 0:
        with tool.span("logging", "remote"):
            wait(program.logger_s)
    if program.save_every and step.count % program.save_every == 0:
        with tool.span("checkpoint"):
            torch.save({"weights": step.weights}, folder / "checkpoint.pt")
            wait(program.save_s)
