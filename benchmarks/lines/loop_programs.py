"""Programs whose training thread loses time in a function that is known: drawn from seeds, written as source text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

PLANTED = "# planted"
"""Marks the line that takes the time."""

HEAD = """\
import json
import os
import random
import sys
import time
from collections import Counter

import torch

now = time.perf_counter
spent = Counter()
NUMBERS = [random.Random(0).random() for _ in range(400_000)]
SQUARE = torch.ones(192, 192)
torch.set_num_threads(1)


def tell(whole):
    with open(os.environ["TRUTH"], "w") as file:
        json.dump({"spent": spent, "whole": whole}, file)
"""


def _again(call: str, items: str, seconds: float, each_s: float, most: int) -> str:
    """Return a line that calls a function of C with as many items as take the time, and again where they are many."""
    count = min(most, max(50, int(seconds / each_s)))
    times = round(seconds / (count * each_s))
    once = call.format(items.format(count))
    return f"found = [{once} for _ in range({times})]" if times > 1 else f"found = {once}"


WORK: dict[str, Callable[[float], str]] = {
    "python": lambda s: f"total = sum(i * i for i in range({int(s / 7e-8)}))",
    "sort": lambda s: _again("sorted({})", "NUMBERS[:{}]", s, 1.3e-7, 50_000),
    "json": lambda s: _again("json.dumps({})", "NUMBERS[:{}]", s, 7e-7, 20_000),
    "sleep": lambda s: f"time.sleep({s:.5f})",
    "torch": lambda s: f"product = [SQUARE @ SQUARE for _ in range({max(1, int(s / 2.5e-4))})]",
}
"""One line that takes about so many seconds, by what it does them in: Python code, a C function that holds the
interpreter's lock, a wait, an operation that gives the lock up."""

NAMES = ("redraw", "rank_rows", "summarise", "collect", "pack", "histogram", "tidy", "walk_rows")

LOADER = """
from torch.utils.data import DataLoader, TensorDataset
DATA = DataLoader(TensorDataset(torch.randn({rows}, 16)), batch_size=4)
model = torch.nn.Linear(16, 16)
"""

LIGHTNING = """
import logging
import warnings
warnings.simplefilter("ignore")
import lightning as L
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from stallmeter.lightning import StallMonitor
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
whole = Counter()


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def training_step(self, batch, index):
        time.sleep(0.006)
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)
"""

FIT = """
def fit(**settings):
    monitor = StallMonitor(trackers=None, console=False)
    callbacks = [monitor, *settings.pop("callbacks", ())]
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=2, callbacks=callbacks, enable_progress_bar=False, enable_model_summary=False,
        **{"logger": False, "enable_checkpointing": False, **settings},
    )
    trainer.fit(Model(), DATA, settings.get("val") or VALIDATION)
    tell(whole["in it"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One drawn program."""

    family: str
    seed: int
    rule: str
    """The verdict that should name the place."""
    files: dict[str, str]
    """Source text by file name; ``main.py`` is started."""
    file: str
    """Which of them holds the planted functions."""
    holder: str = ""
    """Class that they are methods of, with a dot."""
    zero_code: bool = False

    @property
    def name(self) -> str:
        return f"{self.family}-{self.seed}"

    def line(self, function: str) -> int:
        """Return the number of a function's planted line."""
        lines = self.files[self.file].splitlines()
        begin = 0 if function == "<module>" else next(i for i, text in enumerate(lines) if f"def {function}(" in text)
        return next(i for i, text in enumerate(lines) if i >= begin and PLANTED in text) + 1


@dataclass(frozen=True, slots=True)
class Parts:
    """Two functions of a program, of which one takes most of the time: which, the program itself finds out."""

    first: str
    second: str
    source: str
    method: bool
    """Whether they are methods of ``Parts``, whose one instance is ``parts``."""

    @property
    def calls(self) -> str:
        """Statements that call both."""
        where = "parts." if self.method else ""
        return f"{where}{self.first}(); {where}{self.second}()"


def parts_of(rng: random.Random, seconds: float) -> Parts:
    """Draw two functions that take so many seconds together, the first 55 to 85 % of them."""
    first, second = rng.sample(NAMES, 2)
    share, method = rng.uniform(0.55, 0.85), rng.random() < 0.5
    indent = "    " if method else ""
    text = "\n\nclass Parts:" if method else "\n"
    for name, part in ((first, share), (second, 1 - share)):
        work = WORK[rng.choice(list(WORK))](seconds * part)
        text += f"\n\n{indent}def {name}({'self' if method else ''}):\n"
        text += f"{indent}    began = now()\n{indent}    {work}  {PLANTED}\n"
        text += f'{indent}    spent["{name}"] += now() - began\n'
    return Parts(first, second, text + ("\n\nparts = Parts()\n" if method else "\n"), method)


def _lightning(parts: Parts, body: str, *, rows: int = 800) -> str:
    validation = "VALIDATION = None\n"
    return HEAD + LOADER.format(rows=rows) + validation + LIGHTNING + parts.source + FIT + body


def _timed(parts: Parts, indent: int) -> str:
    pad = " " * indent
    return f'{pad}began = now()\n{pad}{parts.calls}\n{pad}whole["in it"] += now() - began\n'


def _callback(rng: random.Random) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(0.004, 0.009))
    body = "\n\nclass Painter(L.Callback):\n    def on_train_batch_end(self, *arguments):\n" + _timed(parts, 8)
    return _lightning(parts, body + "\n\nfit(callbacks=[Painter()])\n", rows=1600), parts


def _logger(rng: random.Random) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(0.004, 0.009))
    body = "\n\nclass Sender(CSVLogger):\n    def log_metrics(self, metrics, step=None):\n" + _timed(parts, 8)
    return _lightning(parts, body + '\n\nfit(logger=Sender("logs"), log_every_n_steps=1)\n', rows=1600), parts


def _checkpoint(rng: random.Random) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(0.15, 0.4))
    body = "\n\nclass Store(TorchCheckpointIO):\n    def save_checkpoint(self, *arguments, **settings):\n"
    body += _timed(parts, 8) + "        super().save_checkpoint(*arguments, **settings)\n"
    body += '\n\nsaving = ModelCheckpoint("saved", every_n_train_steps=60, save_top_k=-1)\n'
    return _lightning(parts, body + "fit(callbacks=[saving], enable_checkpointing=True, plugins=[Store()])\n"), parts


def _validation(rng: random.Random) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(0.02, 0.05))
    body = "\n\ndef score(self, batch, index):\n" + _timed(parts, 4) + "\n\nModel.validation_step = score\n"
    body += "VALIDATION = DataLoader(TensorDataset(torch.randn(80, 16)), batch_size=4)\n"
    return _lightning(parts, body + "fit(val_check_interval=100)\n"), parts


def _start(rng: random.Random) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(3.0, 5.0))
    body = "\n\ndef setup(self, stage):\n" + _timed(parts, 4) + "\n\nModel.setup = setup\nfit()\n"
    return _lightning(parts, body), parts


def _plain(parts: Parts, body: str, *, before: str = "", zero_code: bool = False) -> str:
    own = "" if zero_code else "import stallmeter\nmonitor = stallmeter.Monitor(trackers=None, console=False)\n"
    batches = "DATA" if zero_code else "monitor.watch(DATA)"
    end = "" if zero_code else "monitor.close()\n"
    return (
        HEAD
        + LOADER.format(rows=1600)
        + own
        + parts.source
        + before
        + f"""

def train():
    whole = 0.0
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for epoch in range(2):
        for step, (x,) in enumerate({batches}):
            began = now()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.001)
{body}
    return whole


whole = train()
{end}tell(whole)
"""
    )


def _hook(rng: random.Random, *, zero_code: bool = False) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(0.014, 0.022))  # more than the loop's own work on a busy machine, too
    body = f"            {parts.calls}\n            whole += now() - began"
    return _plain(parts, body, zero_code=zero_code), parts


def _outlier(rng: random.Random) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(0.15, 0.4))
    body = f"            if step % 50 == 25:\n                {parts.calls}\n                whole += now() - began"
    return _plain(parts, body), parts


def _plain_checkpoint(rng: random.Random) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(0.1, 0.3))
    body = '            if step % 60 == 30:\n                with monitor.span("checkpoint"):\n'
    body += f"                    began = now()\n                    {parts.calls}\n"
    return _plain(parts, body + "                    whole += now() - began"), parts


def _plain_validation(rng: random.Random) -> tuple[str, Parts]:
    parts = parts_of(rng, rng.uniform(0.01, 0.03))
    before = "\nVALIDATION = DataLoader(TensorDataset(torch.randn(200, 16)), batch_size=4)\n"
    body = (
        '            if step % 200 == 100:\n                for _ in monitor.watch(VALIDATION, stage="validation"):\n'
    )
    body += f"                    began = now()\n                    {parts.calls}\n"
    return _plain(parts, body + "                    whole += now() - began", before=before), parts


def _import(rng: random.Random) -> tuple[dict[str, str], str]:
    name = rng.choice(("tables", "lexicon", "shapes"))
    work = WORK[rng.choice(("python", "sort", "sleep"))](rng.uniform(2.5, 4.0))
    module = "import time\n\nNUMBERS = [i * 0.37 % 1.0 for i in range(400_000)]\n"
    module += f"began = time.perf_counter()\n{work}  {PLANTED}\nTOOK = time.perf_counter() - began\n"
    body = f"\n\ndef setup(self, stage):\n    began = now()\n    import {name}\n"
    body += (
        f'    spent["<module>"] += {name}.TOOK\n    whole["in it"] += now() - began\n\n\nModel.setup = setup\nfit()\n'
    )
    nothing = Parts("", "", "\n", method=False)
    return {"main.py": _lightning(nothing, body), f"{name}.py": module}, f"{name}.py"


FAMILIES: dict[str, tuple[str, Callable[[random.Random], tuple[str, Parts]]]] = {
    "callback": ("slow-callback", _callback),
    "logger": ("slow-logging", _logger),
    "checkpoint": ("checkpoint-stall", _checkpoint),
    "validation": ("validation-heavy", _validation),
    "start": ("slow-start", _start),
    "hook": ("compute-bound", _hook),
    "zero-code hook": ("compute-bound", lambda rng: _hook(rng, zero_code=True)),
    "outlier": ("step-outliers", _outlier),
    "plain checkpoint": ("checkpoint-stall", _plain_checkpoint),
    "plain validation": ("validation-heavy", _plain_validation),
}


def draw(family: str, seed: int) -> Program:
    """Return the program of a family and a seed."""
    rng = random.Random(f"{family} {seed}")
    if family == "import":
        files, file = _import(rng)
        return Program(family=family, seed=seed, rule="slow-start", files=files, file=file)
    rule, make = FAMILIES[family]
    source, parts = make(rng)
    return Program(
        family=family,
        seed=seed,
        rule=rule,
        files={"main.py": source},
        file="main.py",
        holder="Parts." if parts.method else "",
        zero_code=family.startswith("zero-code"),
    )
