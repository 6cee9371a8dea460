"""A real Trainer on CPU whose time passes only where a test says so."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ..conftest import FakeTime

torch.set_num_threads(1)
NAMESPACES = {"lightning.pytorch": "unified", "pytorch_lightning": "legacy"}


class Items(Dataset):
    """Each item takes ``cost_s`` of fake time."""

    def __init__(self, count: int = 16, cost_s: float = 0.0, time: FakeTime | None = None) -> None:
        self.count, self.cost_s, self.time = count, cost_s, time

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.count:
            raise IndexError
        if self.time is not None:
            self.time.sleep(self.cost_s)
        return torch.full((4,), float(index))


class Bench:
    """Builds modules, trainers and callbacks of one namespace around one fake clock."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self.pl = importlib.import_module(namespace)
        self.module = importlib.import_module(f"stallmeter.lightning.{NAMESPACES[namespace]}")
        self.time = FakeTime()
        self.folder = folder

    @property
    def version(self) -> tuple[int, int]:
        """Lightning's, major and minor."""
        major, minor, *_ = self.pl.__version__.split(".")
        return int(major), int(minor)

    def loader(self, count: int = 16, cost_s: float = 0.0, **options: Any) -> DataLoader:
        return DataLoader(Items(count, cost_s, self.time), **{"batch_size": 4, **options})

    def monitor(self, **options: Any) -> Any:
        time = self.time
        base = self.module.StallMonitor

        class Timed(base):  # type: ignore[misc, valid-type]
            _now = staticmethod(time)

        options = {"directory": self.folder / "rec", "hardware": False, "workers": False, "console": False, **options}
        return Timed(**options)

    def model(self, **costs: float) -> Any:
        """A module whose hooks take fake time: ``training_step=0.01`` and so on."""
        time = self.time
        base = self.pl.LightningModule

        class Model(base):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                time.sleep(costs.get("training_step", 0.0))
                loss = self.layer(batch if isinstance(batch, torch.Tensor) else torch.ones(4, 4)).sum()
                self.log("loss", loss.detach())
                return loss

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                time.sleep(costs.get("validation_step", 0.0))

            def on_before_optimizer_step(self, optimizer: Any) -> None:
                time.sleep(costs.get("on_before_optimizer_step", 0.0))

            def backward(self, loss: Any) -> None:
                time.sleep(costs.get("backward", 0.0))
                loss.backward()

            def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
                time.sleep(costs.get("h2d", 0.0))
                return super().transfer_batch_to_device(batch, device, dataloader_idx)

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=1e-3)

        return Model()

    def trainer(self, *callbacks: Any, **options: Any) -> Any:
        return self.pl.Trainer(
            **{
                "accelerator": "cpu",
                "callbacks": list(callbacks),
                "max_epochs": 1,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "enable_checkpointing": False,
                "num_sanity_val_steps": 0,
                "logger": False,
                "default_root_dir": self.folder,
                **options,
            }
        )

    def counter(self) -> Any:
        """A callback that sees what Lightning itself does: the size of each batch that was used."""
        samples: list[int | None] = []

        def on_train_batch_end(_: Any, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            samples.append(None if batch is None else len(batch))

        return type("Counter", (self.pl.Callback,), {"on_train_batch_end": on_train_batch_end, "samples": samples})()

    def sleeper(self, **hooks: float) -> Any:
        """A callback named Sleeper whose hooks take fake time."""
        time = self.time

        def hook(cost_s: float) -> Callable[..., None]:
            return lambda *_, **__: time.sleep(cost_s)

        members = {name: hook(cost) for name, cost in hooks.items()}
        return type("Sleeper", (self.pl.Callback,), members)()


both_namespaces = pytest.mark.parametrize("bench", list(NAMESPACES), indirect=True)
"""For at least one test of each thing that may tell one package from the other; the rest of their code is the same."""


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(getattr(request, "param", "lightning.pytorch"), tmp_path)


@pytest.fixture
def unified(tmp_path: Path) -> Bench:
    return Bench("lightning.pytorch", tmp_path)
