"""One program for each framework, as its documentation would have it. None knows what measures it.

Args of each: the draw, the program's own clock, callbacks of the framework's kind, and for loops of one's own what
watches loaders and names spans.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from .draws import Draw
from .work import HeldOut, Items, Marks, Slow, held_out_loader, make_loader, settings


class Nobody:
    """Watches nothing."""

    callbacks: tuple[Any, ...] = ()

    def watch(self, loader: Any, stage: str = "train") -> Any:
        return loader

    def span(self, bucket: str, name: str | None = None) -> Any:
        return nullcontext()


def _loop(draw: Draw, marks: Marks, tool: Any, prepare: Any, backward: Any, after: Any) -> None:
    model = Slow(draw, marks)
    loader, held_out = prepare(make_loader(draw)), held_out_loader(draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(draw.epochs):
        model.train()
        for x, y in tool.watch(loader):
            marks.begin()
            optimizer.zero_grad()
            backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            marks.end()
            after()
        marks.break_off()
        if held_out is not None:
            model.eval()
            with torch.no_grad():
                for x, _y in tool.watch(held_out, stage="validation"):
                    model(x)


def plain(draw: Draw, marks: Marks, tool: Any, folder: Path) -> None:
    def after() -> None:
        with tool.span("callbacks", "after_batch"):
            marks.hook(draw.hook_s)

    _loop(draw, marks, tool, lambda loader: loader, torch.Tensor.backward, after)


def accelerate(draw: Draw, marks: Marks, tool: Any, folder: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)

    def after() -> None:
        with tool.span("callbacks", "after_batch"):
            marks.hook(draw.hook_s)

    _loop(draw, marks, tool, accelerator.prepare, accelerator.backward, after)


def fabric(draw: Draw, marks: Marks, tool: Any, folder: Path) -> None:
    from lightning.fabric import Fabric

    class Hook:
        def on_after_batch(self) -> None:
            marks.hook(draw.hook_s)

    made = Fabric(accelerator="cpu", devices=1, callbacks=[Hook()])

    def after() -> None:
        with tool.span("callbacks", "Hook"):
            made.call("on_after_batch")

    _loop(draw, marks, tool, made.setup_dataloaders, made.backward, after)


def transformers(draw: Draw, marks: Marks, tool: Any, folder: Path) -> None:
    import transformers

    class Named(torch.utils.data.Dataset[Any]):
        def __init__(self, rows: Any) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            x, y = self.rows[index]
            return {"x": x, "labels": y}

    class Model(Slow):
        def forward(self, x: Any, labels: Any) -> Any:  # type: ignore[override]
            out = super().forward(x)
            return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

    class Hook(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            marks.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.end()
            marks.hook(draw.hook_s)

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            marks.break_off()

    workers = {f"dataloader_{name}": value for name, value in settings(draw).items()}
    arguments = transformers.TrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=draw.batch_size,
        per_device_eval_batch_size=draw.batch_size,
        num_train_epochs=draw.epochs,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        eval_strategy="epoch" if draw.held_out else "no",
        **workers,
    )
    evaluated = {"eval_dataset": Named(HeldOut(draw))} if draw.held_out else {}
    trainer = transformers.Trainer(
        Model(draw, marks),
        arguments,
        train_dataset=Named(Items(draw)),
        callbacks=[Hook(), *tool.callbacks],
        **evaluated,
    )
    if draw.held_out:  # its time is the model's
        trainer.args.dataloader_num_workers = draw.workers
    trainer.train()


def keras(draw: Draw, marks: Marks, tool: Any, folder: Path) -> None:
    import time

    import keras

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            if self.built:
                time.sleep(draw.step_s if training else draw.held_out_s)
            return self.layer(x)

    class Hook(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            marks.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            marks.end()
            marks.hook(draw.hook_s)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            marks.break_off()

    model = Model()
    model.compile("sgd", "mse")
    model.fit(
        make_loader(draw),
        epochs=draw.epochs,
        validation_data=held_out_loader(draw),
        callbacks=[Hook(), *tool.callbacks],
        verbose=0,
    )


def ignite(draw: Draw, marks: Marks, tool: Any, folder: Path) -> None:
    from ignite.engine import Engine, Events

    model, held_out = Slow(draw, marks), held_out_loader(draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(engine: Any, batch: Any) -> float:
        model.train()
        marks.begin()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        marks.end()
        return float(loss.detach())

    def evaluate(engine: Any, batch: Any) -> Any:
        model.eval()
        with torch.no_grad():
            return model(batch[0])

    trainer, evaluator = Engine(train), Engine(evaluate)
    for callback in tool.callbacks:
        callback.attach(trainer)
    if draw.hook_s:
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: marks.hook(draw.hook_s))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, marks.break_off)
    if held_out is not None:
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(held_out))
    trainer.run(make_loader(draw), max_epochs=draw.epochs)


def lightning(draw: Draw, marks: Marks, tool: Any, folder: Path) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Slow(draw, marks)

        def training_step(self, batch: Any, index: int) -> Any:
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Hook(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            marks.begin()

        def on_train_batch_end(self, *_: Any) -> None:
            marks.end()
            marks.hook(draw.hook_s)

        def on_validation_start(self, *_: Any) -> None:
            marks.break_off()

        def on_train_epoch_end(self, *_: Any) -> None:
            marks.break_off()

    trainer = pl.Trainer(
        max_epochs=draw.epochs,
        callbacks=[Hook(), *tool.callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        num_sanity_val_steps=0,
    )
    held_out = held_out_loader(draw)
    trainer.fit(Module(), make_loader(draw), held_out)


PROGRAMS = {
    "plain": plain,
    "accelerate": accelerate,
    "transformers": transformers,
    "fabric": fabric,
    "keras": keras,
    "ignite": ignite,
    "lightning": lightning,
}
