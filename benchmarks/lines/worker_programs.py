"""Programs whose batches take long in a function that is known: drawn from seeds, written as source text.

Each source has three forms. ``measured`` trains under stallmeter. ``timed`` makes the same batches alone and times the
planted function, the one beside it and all of it by a clock of its own. ``mended`` trains without what was planted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent, indent

PLANTED = "# planted"
"""Marks the lines that take the time."""

BESIDE = "prepare"
"""A second function that takes a part of each item."""

HEAD = '''\
import contextlib
import functools
import io
import os
import random
import socket
import sys
import threading
import time
import zlib

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

ITEMS = 6000
PIXELS = np.random.default_rng(0).integers(0, 255, (160, 160, 3), dtype=np.uint8)
BYTES = PIXELS.tobytes() * 12
DRAWN = random.Random(0)
NUMBERS = [DRAWN.random() for _ in range(40_000)]
PICTURE = Image.fromarray(PIXELS)
MATRIX = torch.from_numpy(PIXELS[:, :, 0].astype(np.float32))


def connect():
    return socket.create_connection(("127.0.0.1", int(os.environ["SERVER"])))


def ask(connection, microseconds):
    connection.sendall(b"%8d" % microseconds)
    return connection.recv(1)


class Held:
    """A lock that another thread holds most of the time."""

    def __init__(self, seconds):
        self.lock, self.seconds, self.thread = threading.Lock(), seconds, None

    def hold(self):
        while True:
            with self.lock:
                time.sleep(self.seconds)
            time.sleep(0.0005)

    def here(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self.hold, daemon=True)
            self.thread.start()
        return self.lock

    def __getstate__(self):
        return self.seconds

    def __setstate__(self, seconds):
        self.__init__(seconds)


def prepare(index):
    total = 0
    for k in range({other}):
        total += k ^ index
    return torch.tensor([float(total % 97), float(index)])


def mark():
    return random.random() + float(torch.rand(1)) + float(np.random.rand())


'''

TAIL = """

def loader(workers, context):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    context = context if workers else None
    return DataLoader(
        make(), batch_size={batch_size}, num_workers=workers, multiprocessing_context=context,
        collate_fn={collate}, persistent_workers={persistent} and workers > 0, shuffle={shuffle} or None
    )


def product_s():
    # A step is so much work, whoever else wants the CPUs: a wait by the clock would not be slowed by workers.
    taken = []
    for _ in range(200):
        began = time.perf_counter()
        torch.mm(MATRIX, MATRIX)
        taken.append(time.perf_counter() - began)
    return sorted(taken)[50]


def train(batches, step, seconds, digest):
    began, first, count = time.perf_counter(), None, 0
    while time.perf_counter() - began < seconds:
        for batch in batches:
            digest(batch)
            step(batch)
            count += 1
            first = first or time.perf_counter()
            if time.perf_counter() - began >= seconds:
                break
    return (count - 1) / (time.perf_counter() - first)


def main():
    import hashlib
    import json

    form, workers, seconds = os.environ["FORM"], {workers}, float(os.environ["SECONDS"])
    torch.set_num_threads(1)
    digests = []
    result = {{"digests": digests}}

    def digest(batch):
        digests.append(hashlib.md5(repr(batch).encode()).hexdigest()[:8])

    products = round({step_s} / product_s())

    def step(batch):
        for _ in range(products):
            torch.mm(MATRIX, MATRIX)

    if form == "timed":
        result = time_it()
    elif {lightning}:
        result["rate"] = fit(loader(workers, "{context}"), step, seconds, digest)
    elif form == "plain":
        result["rate"] = train(loader(workers, "{context}"), step, seconds, digest)
    else:
        import stallmeter

        options = {{"deep_batches": int(os.environ["BATCHES"])}}
        monitor = stallmeter.Monitor(directory=os.environ["RECORDINGS"], trackers=None, console=False, **options)
        batches = monitor.watch(loader(workers, "{context}"))
        result["rate"] = train(batches, step, seconds, digest)
        monitor.close()
    with open(os.environ["RESULT"], "w") as file:
        json.dump(result, file)


def time_it():
    spent, beside, real, prepared = [0.0], [0.0], {function}, prepare

    def prepare_timed(index):
        began = time.perf_counter()
        try:
            return prepared(index)
        finally:
            beside[0] += time.perf_counter() - began

    {wrapper}
    {replace}
    globals()["prepare"] = prepare_timed
    batches, whole = iter(loader(0, None)), []
    for i in range(14):
        spent[0] = beside[0] = 0.0
        began = time.perf_counter()
        next(batches)
        whole.append((spent[0], beside[0], time.perf_counter() - began))
    return dict(zip(("spent", "beside", "whole"), map(sum, zip(*whole[2:]))), batches=len(whole[2:]))


def fit(batches, step, seconds, digest):
    import logging
    import warnings

    warnings.simplefilter("ignore")
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    first = []

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            first.append(time.perf_counter()) if not first else None
            digest(batch)
            step(batch)
            if time.perf_counter() - began >= seconds:
                self.trainer.should_stop = True
            return self.layer(torch.ones(1, 1)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    callbacks = []
    if os.environ["FORM"] != "plain":
        from stallmeter.lightning import StallMonitor

        options = {{"deep_batches": int(os.environ["BATCHES"])}}
        callbacks = [StallMonitor(directory=os.environ["RECORDINGS"], trackers=None, console=False, **options)]
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=callbacks,
    )
    model, began = Model(), time.perf_counter()
    trainer.fit(model, batches)
    return trainer.global_step / (time.perf_counter() - first[0])


if __name__ == "__main__":
    main()
"""

LIBRARY = '''\
"""A library with a dataset and transforms of its own."""
import numpy as np
import torch
from PIL import Image


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(np.asarray(image).mean(axis=2))


class Turn:
    def __init__(self, degrees, size):
        self.degrees, self.size = degrees, size

    def __call__(self, image):
        return self.forward(image)

    def forward(self, image):
        return turned(image, self.degrees, self.size)


def turned(image, degrees, size):
    return image.resize((size, size)).rotate(degrees, resample=Image.Resampling.BICUBIC).resize((64, 64))


class Pictures:
    def __init__(self, pixels, count, transform):
        self.pixels, self.count, self.transform = pixels, count, transform

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.pixels)), index
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One drawn program."""

    family: str
    seed: int
    source: str
    mended: str
    function: str
    """Qualified: where most of it is."""
    workers: int
    context: str
    lightning: bool
    others: tuple[str, ...] = ()
    """Other names that are as right: where no function is the user's."""

    @property
    def name(self) -> str:
        return f"{self.family}-{self.seed}"

    @property
    def lines(self) -> set[int]:
        """Numbers of the planted lines."""
        return {i for i, text in enumerate(self.source.splitlines(), 1) if PLANTED in text}

    @property
    def lines_beside(self) -> set[int]:
        """Numbers of the lines of the function beside it that take its time."""
        head = f"def {BESIDE}("
        lines = self.source.splitlines()
        first = next(i for i, text in enumerate(lines, 1) if text.startswith(head))
        return {first + 2, first + 3}


@dataclass(frozen=True, slots=True)
class Planted:
    """A dataset with a function that takes the time."""

    text: str
    """Source; ``make()`` returns the dataset."""
    function: str
    is_generator: bool = False
    collate: str = "None"
    iterable: bool = False
    others: tuple[str, ...] = ()


def work(rng: random.Random, seconds: float, *, kinds: tuple[str, ...] = ()) -> str:
    """Draw lines that take about so many seconds: Python code, a library's C code, or a wait."""
    kind = rng.choice(kinds or tuple(WORK))
    return WORK[kind](seconds)


WORK: dict[str, Callable[[float], str]] = {
    "loop": lambda s: f"for k in range({int(s / 6.5e-8)}):  {PLANTED}\n    value = k * 3 + 1  {PLANTED}",
    "comprehension": lambda s: f"value = sum([k * k for k in range({int(s / 4.1e-8)})])  {PLANTED}",
    "calls": lambda s: f"value = [divmod(k, 7) for k in range({int(s / 1.3e-7)})]  {PLANTED}",
    "sort": lambda s: f"value = sorted(NUMBERS[: {max(100, int(s / 1.5e-7))}])  {PLANTED}",
    "numpy": lambda s: f"value = np.sort(np.tile(PIXELS.ravel()[::-1], {max(1, int(s / 3e-3))}))  {PLANTED}",
    "operator": lambda s: f"value = [MATRIX @ MATRIX for _ in range({max(1, int(s / 1.6e-4))})]  {PLANTED}",
    "pil": lambda s: f"value = PICTURE.resize(({int((s / 1.7e-8) ** 0.5)},) * 2, Image.Resampling.BICUBIC)  {PLANTED}",
    "zlib": lambda s: f"value = zlib.compress(BYTES[: {max(2000, int(s / 5e-8))}], 6)  {PLANTED}",
    "torch": lambda s: f"value = torch.sort(MATRIX.flatten().repeat({max(1, int(s / 1.2e-3))}))[0]  {PLANTED}",
    "sleep": lambda s: f"time.sleep({s:.5f})  {PLANTED}",
}
"""One statement that takes about so many seconds."""


def _body(text: str, spaces: int) -> str:
    return indent(text, " " * spaces).lstrip(" ")


def _dataset(rng: random.Random, s: float) -> Planted:
    name = rng.choice(("decode", "load", "_read", "crop"))
    text = f"""
    class Photos(Dataset):
        def __len__(self):
            return ITEMS

        def {name}(self, index):
            {_body(work(rng, s), 12)}
            return torch.ones(3)

        def __getitem__(self, index):
            item = prepare(index)
            more = self.{name}(index)
            return item, more, mark()


    def make():
        return Photos()
    """
    return Planted(dedent(text), f"Photos.{name}")


def _itself(rng: random.Random, s: float) -> Planted:
    text = f"""
    class Photos(Dataset):
        def __len__(self):
            return ITEMS

        def __getitem__(self, index):
            item = index * 2.0
            other = {{"a": item}}
            {_body(work(rng, s), 12)}
            return item, other["a"], mark()


    def make():
        return Photos()
    """
    return Planted(dedent(text), "Photos.__getitem__")


CHAIN = """
class Chain:
    def __init__(self, *parts):
        self.parts = parts

    def __call__(self, item):
        for part in self.parts:
            item = part(item)
        return item


class Scale:
    def __call__(self, item):
        return item * 0.5 + prepare(3).sum()


class Photos(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        return self.transform(torch.tensor([float(index), 1.0])), mark()


def make():
    return Photos({made})
"""


def _chain(rng: random.Random, s: float) -> Planted:
    name = rng.choice(("Rotate", "Jitter", "Blur"))
    text = f"""
    class {name}:
        def __call__(self, item):
            {_body(work(rng, s), 12)}
            return item + 1.0
    """
    return Planted(dedent(text) + CHAIN.format(made=f"Chain(Scale(), {name}(), Scale())"), f"{name}.__call__")


def _wrapped(rng: random.Random, s: float) -> Planted:
    text = f"""
    def logged(function):
        @functools.wraps(function)
        def inside(*arguments):
            return function(*arguments)
        return inside


    @logged
    def augment(item):
        {_body(work(rng, s), 8)}
        return item + 1.0
    """
    return Planted(dedent(text) + CHAIN.format(made="Chain(Scale(), augment)"), "augment")


def _closure(rng: random.Random, s: float) -> Planted:
    text = f"""
    class Noise:
        def __init__(self, by):
            self.by = by

        def __call__(self, item):
            def spread(value):
                {_body(work(rng, s).replace("value =", "other ="), 16)}
                return value + self.by
            return spread(item)
    """
    made = "Chain(Scale(), Noise(2.0))"
    return Planted(dedent(text) + CHAIN.format(made=made), "Noise.__call__.<locals>.spread")


def _collate(rng: random.Random, s: float) -> Planted:
    text = f"""
    class Photos(Dataset):
        def __len__(self):
            return ITEMS

        def __getitem__(self, index):
            return prepare(index), mark()


    def pad(items):
        {_body(work(rng, 4 * s), 8)}
        return torch.utils.data.default_collate(items)


    def make():
        return Photos()
    """
    return Planted(dedent(text), "pad", collate="pad")


def _socket(rng: random.Random, s: float) -> Planted:
    text = f"""
    class Remote(Dataset):
        connection = None

        def __len__(self):
            return ITEMS

        def fetch(self, index):
            if self.connection is None:
                self.connection = connect()
            self.connection.sendall(b"%8d" % {int(1e6 * s)})
            value = self.connection.recv(1)  {PLANTED}
            return torch.ones(2)

        def __getitem__(self, index):
            return prepare(index), self.fetch(index), mark()


    def make():
        return Remote()
    """
    return Planted(dedent(text), "Remote.fetch")


def _lock(rng: random.Random, s: float) -> Planted:
    take = rng.choice(("with_", "acquire"))
    lines = {
        "with_": f"with self.held.here():  {PLANTED}\n    pass  {PLANTED}",
        "acquire": f"self.held.here().acquire()  {PLANTED}\nself.held.lock.release()  {PLANTED}",
    }[take]
    text = f"""
    class Shared(Dataset):
        def __init__(self):
            self.held = Held({s:.5f})

        def __len__(self):
            return ITEMS

        def guarded(self, index):
            {_body(lines, 12)}
            return torch.ones(2)

        def __getitem__(self, index):
            return prepare(index), self.guarded(index), mark()


    def make():
        return Shared()
    """
    return Planted(dedent(text), "Shared.guarded")


def _library(rng: random.Random, s: float) -> Planted:
    size = int((s / 2.2e-8) ** 0.5)
    text = f"""
    from visionkit import transforms


    def make():
        turn = transforms.Turn({rng.randint(10, 80)}, {size})
        return transforms.Pictures(PIXELS, ITEMS, transforms.Compose([turn, transforms.ToTensor()]))
    """
    return Planted(dedent(text), "Turn.forward", others=("turned",))


def _generator(rng: random.Random, s: float) -> Planted:
    text = f"""
    class Stream(IterableDataset):
        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            at, by = (0, 1) if info is None else (info.id, info.num_workers)
            for index in range(at, ITEMS, by):
                item = prepare(index)
                {_body(work(rng, s), 16)}
                yield item, mark()


    def make():
        return Stream()
    """
    return Planted(dedent(text), "Stream.__iter__", is_generator=True, iterable=True)


def _pipeline(rng: random.Random, s: float) -> Planted:
    text = f"""
    def numbers():
        info = torch.utils.data.get_worker_info()
        at, by = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(at, ITEMS, by)


    def parsed(stream):
        for index in stream:
            yield parse(index)


    def parse(index):
        {_body(work(rng, s), 8)}
        return prepare(index), mark()


    class Stream(IterableDataset):
        def __iter__(self):
            return parsed(numbers())


    def make():
        return Stream()
    """
    return Planted(dedent(text), "parse", iterable=True)


def _batched(rng: random.Random, s: float) -> Planted:
    text = f"""
    class Table(Dataset):
        def __len__(self):
            return ITEMS

        def __getitem__(self, index):
            return self.__getitems__([index])[0]

        def __getitems__(self, indices):
            items = [prepare(index) for index in indices]
            self.join(items)
            return items

        def join(self, items):
            {_body(work(rng, 4 * s), 12)}


    def make():
        return Table()
    """
    return Planted(dedent(text), "Table.join")


FAMILIES: dict[str, Callable[[random.Random, float], Planted]] = {
    "dataset": _dataset,
    "itself": _itself,
    "chain": _chain,
    "wrapped": _wrapped,
    "closure": _closure,
    "collate": _collate,
    "socket": _socket,
    "lock": _lock,
    "library": _library,
    "generator": _generator,
    "pipeline": _pipeline,
    "batched": _batched,
}

CALL = """
    @functools.wraps(real)
    def wrapper(*arguments):
        began, within = time.perf_counter(), beside[0]
        try:
            return real(*arguments)
        finally:
            spent[0] += time.perf_counter() - began - (beside[0] - within)
"""

GENERATOR = """
    def wrapper(*arguments):
        made = real(*arguments)
        while True:
            began, within = time.perf_counter(), beside[0]
            try:
                item = next(made)
            except StopIteration:
                return
            spent[0] += time.perf_counter() - began - (beside[0] - within)
            yield item
"""


def draw(family: str, seed: int) -> Program:
    """Return the program of a family and a seed."""
    rng = random.Random(f"{family} {seed}")
    seconds, share = rng.uniform(0.003, 0.007), rng.uniform(0.5, 0.85)
    planted = FAMILIES[family](rng, seconds)
    workers, context = rng.choice((0, 1, 1, 2)), rng.choice(("fork", "fork", "spawn"))
    is_lightning = rng.random() < 0.2
    other = int(seconds * (1 - share) / share / 7e-8)
    tail = TAIL.format(
        batch_size=4,
        collate=planted.collate,
        persistent=rng.random() < 0.5,
        shuffle=not planted.iterable,
        workers=workers,
        context=context,
        lightning=is_lightning,
        step_s=round(rng.uniform(0.001, 0.004), 4),
        function=_real(planted),
        wrapper=(GENERATOR if planted.is_generator else CALL).strip(),
        replace=_replace(planted),
    )
    source = HEAD.replace("{other}", str(other)) + planted.text.lstrip() + tail
    return Program(
        family=family,
        seed=seed,
        source=source,
        mended=_mended(source),
        function=planted.function,
        workers=workers,
        context=context,
        lightning=is_lightning,
        others=planted.others,
    )


def _real(planted: Planted) -> str:
    if "<locals>" in planted.function:
        return planted.function.partition(".<locals>")[0]
    return f"transforms.{planted.function}" if planted.others else planted.function


def _replace(planted: Planted) -> str:
    target = _real(planted)
    owner, _, name = target.rpartition(".")
    if owner:
        return f"{owner}.{name} = wrapper"
    return f'globals()["{target}"] = wrapper'


def _mended(source: str) -> str:
    """Return the source without what was planted."""
    lines = []
    for text in source.splitlines():
        if PLANTED not in text:
            lines.append(text)
        elif text.rstrip(f"{PLANTED} ").endswith(":") or text.strip().startswith(("for ", "with ")):
            lines.append(text[: len(text) - len(text.lstrip())] + "if True:")
        else:
            lines.append(text[: len(text) - len(text.lstrip())] + "value = 0")
    return "\n".join(lines) + "\n"
