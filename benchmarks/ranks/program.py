"""The training of one rank, with or without its planted fault: ``torchrun … program.py REQUEST``.

It knows the public names of stallmeter and nothing of its rules. The request is a JSON file with the fields of a draw,
the folder of the recording (or null: without stallmeter), and where to write what was measured. With the tool
``traceml`` it is watched by that, under its own launcher.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def spend(seconds: float, spins: bool) -> None:
    """Spend time, on a CPU or off it."""
    if not spins:
        time.sleep(seconds)
        return
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(500))


class Items(Dataset[torch.Tensor]):
    """Vectors; the first item of a batch takes what a batch is to take."""

    def __init__(self, request: dict[str, Any], rank: int) -> None:
        self.request, self.rank = request, rank

    def __len__(self) -> int:
        return int(self.request["steps"] * self.request["batch"])

    def __getitem__(self, index: int) -> torch.Tensor:
        request = self.request
        if index % request["batch"] == 0 and request["planted"]:
            step, fault = index // request["batch"], request["fault"]
            late = fault == "both-data" or (fault == "data" and self.rank == request["rank"])
            if late or (fault == "rotating" and step % 2 == self.rank):
                # A worker makes a batch while the loop takes its step: only what is longer is waited for.
                hidden_s = request["step_s"] if request["workers"] else 0.0
                spend(request["extra_s"] + hidden_s, request["spins"])
        return torch.randn(request["features"])


class SlowBackward(torch.autograd.Function):
    """Takes its time in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float, spins: bool) -> torch.Tensor:
        ctx.seconds, ctx.spins = seconds, spins
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        spend(ctx.seconds, ctx.spins)
        return grads[0], None, None


class Net(nn.Module):
    """One wide layer: what it has to exchange is the square of its width."""

    def __init__(self, request: dict[str, Any], rank: int) -> None:
        super().__init__()
        width = request["features"]
        self.wide, self.last = nn.Linear(width, width), nn.Linear(width, 4)
        self.request, self.rank = request, rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        request, planted_s = self.request, planted(self.request, self.rank)
        time.sleep(request["step_s"])
        if request["fault"] == "forward" and planted_s:
            spend(planted_s, request["spins"])
        hidden = torch.relu(self.wide(x))
        if request["fault"] == "backward" and planted_s:
            hidden = SlowBackward.apply(hidden, planted_s, request["spins"])
        return self.last(hidden)


def planted(request: dict[str, Any], rank: int, step: int = 0) -> float:
    """Return what this rank has to spend in this step beyond the others."""
    if not request["planted"] or rank != request["rank"] or step % request["every"]:
        return 0.0
    return float(request["extra_s"])


def killed_here(request: dict[str, Any], rank: int, step: int) -> None:
    """Die at once, where rank 1 is to die in this step, and leave behind when that was."""
    if rank == 1 and step == request.get("killed_at"):
        Path(f"{request['result']}.killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def skips_exchange(request: dict[str, Any]) -> bool:
    """Whether the sending is what is removed: DDP still copies into its buckets and out of them."""
    return request["fault"] == "communication" and not request["planted"] and not is_unsynced(request)


def is_unsynced(request: dict[str, Any]) -> bool:
    """Whether DDP is told not to exchange at all, as its users do for all but one of an update's micro-batches."""
    return bool(request.get("unsynced"))


def not_exchanged(_, bucket):  # type: ignore[no-untyped-def]  # torch checks the annotations of such a hook
    """Stand in for the all-reduce of gradients, and send nothing."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def plain(request: dict[str, Any]) -> float:
    """Train in a loop of one's own; return the seconds of the loop."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net(request, RANK))
    if skips_exchange(request):
        model.register_comm_hook(None, not_exchanged)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Items(request, RANK), batch_size=request["batch"], num_workers=request["workers"])
    batches: Any = loader
    monitor: Any = None
    traced: Any = nullcontext
    if request.get("tool") == "traceml":
        import traceml_ai

        traceml_ai.init()
        traced = partial(traceml_ai.trace_step, model)
    if request["recording"]:
        import stallmeter

        monitor = stallmeter.Monitor(directory=request["recording"], trackers=None, console=False)
        batches = monitor.watch(loader)
    started = time.perf_counter()
    for step, batch in enumerate(batches):
        killed_here(request, RANK, step)
        with traced():
            with model.no_sync() if is_unsynced(request) else nullcontext():
                model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            extra_s = planted(request, RANK, step)
            if extra_s and request["fault"] == "hook":
                spend(extra_s, request["spins"])
            if extra_s and request["fault"] in ("logging", "checkpoint"):
                with nullcontext() if monitor is None else monitor.span(request["fault"]):
                    spend(extra_s, request["spins"])
    elapsed_s = time.perf_counter() - started
    if monitor is not None:
        monitor.close()
    dist.barrier()
    dist.destroy_process_group()
    return elapsed_s


def in_lightning(request: dict[str, Any]) -> float:
    """Train with Lightning's ddp; return the seconds of the loop."""
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.plugins.io import TorchCheckpointIO

    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net: nn.Module | None = None
            self.net = Net(request, RANK)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(batch).square().mean()  # type: ignore[misc]
            if request["fault"] == "logging":
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    class Logger(CSVLogger):
        def log_metrics(self, *args: Any, **kwargs: Any) -> None:
            # Lightning asks all ranks; its own loggers write on rank 0 alone.
            if RANK == 0 and request["fault"] == "logging" and request["planted"]:
                spend(request["extra_s"], request["spins"])

    class Hook(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            killed_here(request, trainer.global_rank, index)
            extra_s = planted(request, trainer.global_rank, index)
            if extra_s and request["fault"] == "hook":
                spend(extra_s, request["spins"])

    class SlowStorage(TorchCheckpointIO):
        """Where only rank 0 writes, as always, and is slow."""

        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            if request["planted"] and RANK == 0:
                spend(request["extra_s"], request["spins"])
            super().save_checkpoint(*args, **kwargs)

    class Clock(L.Callback):
        def on_train_start(self, trainer: Any, *_: Any) -> None:
            if skips_exchange(request):
                trainer.strategy.model.register_comm_hook(None, not_exchanged)
            if is_unsynced(request):
                unsynced.enter_context(trainer.strategy.model.no_sync())
            self.started = time.perf_counter()

        def on_train_end(self, *_: Any) -> None:
            self.elapsed_s = time.perf_counter() - self.started

    unsynced = ExitStack()
    clock = Clock()
    callbacks: list[Any] = [clock, Hook()]
    saves = request["fault"] == "checkpoint"
    if saves:
        callbacks.append(ModelCheckpoint(request["scratch"], every_n_train_steps=request["every"], save_top_k=1))
    if request["recording"]:
        from stallmeter.lightning import StallMonitor

        callbacks.append(StallMonitor(directory=request["recording"], console=False))
    if request.get("tool") == "traceml":
        from traceml_ai.integrations.lightning import TraceMLCallback, init

        init()
        callbacks.append(TraceMLCallback())
    logs = request["fault"] == "logging"
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        callbacks=callbacks,
        logger=Logger(request["scratch"]) if logs else False,
        log_every_n_steps=request["every"],
        enable_checkpointing=saves,
        plugins=[SlowStorage()] if saves else None,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    loader = DataLoader(Items(request, RANK), batch_size=request["batch"], num_workers=request["workers"])
    trainer.fit(Module(), loader)
    return clock.elapsed_s


def main() -> None:
    """Train, and write what was measured."""
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    measured: dict[str, Any] = {}
    measured["loop_s"] = (plain if request["launcher"] == "plain" else in_lightning)(request)
    if request.get("tool") == "traceml" and RANK == 0:
        measured["said"] = traceml_said()
    Path(f"{request['result']}.{RANK}").write_text(json.dumps(measured))


def traceml_said() -> dict[str, Any]:
    """Return traceml's primary diagnosis, and the one of its steps, which names ranks."""
    import traceml_ai

    summary = traceml_ai.final_summary(timeout_sec=60.0) or {}
    steps = (summary.get("step_time") or {}).get("diagnosis") or {}
    primary = dict(summary.get("primary_diagnosis") or steps)
    if primary.get("kind") == steps.get("kind"):
        primary["ranks"] = steps.get("ranks") or primary.get("ranks")
    return {"primary": primary, "steps": steps}


if __name__ == "__main__":
    main()
