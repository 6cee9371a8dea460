"""Where in the program's code time was spent: what a short look saw."""

from __future__ import annotations

from dataclasses import dataclass

IN_WORKERS = frozenset(
    {"cold-cache", "fetch-stall", "input-bound", "no-workers", "prep-stall", "slow-batches", "too-few-workers"}
)
"""Rules whose seconds are spent where batches are made."""

DATA_WAIT = "data_wait"
"""Where the loop's own thread looks for the next indices: the bucket is looked into for that alone."""

IN_THE_LOOP = "batches in the loop"
"""What the loop's own thread does for a batch while it waits for one: a generator's code, or a dataset's."""

STEPS, LONG_STEPS, WARMUP = "steps", "long steps", "warmup"
"""What is looked into besides a bucket: the steps' own work, that of the long ones, that of the first ones."""

HELPERS = "helpers"
"""Place of a look: the program's other threads, while the training thread waits for one of them."""

AWAITS = frozenset(("asyncio", "concurrent", "multiprocessing", "queue", "selectors", "threading"))
"""Packages through which a loop awaits what another thread or process makes."""

STARTS = ("multiprocessing.process.", "multiprocessing.popen_", "multiprocessing.context.")
"""Modules by which processes of Python's are started, and their end is awaited."""

STANDING = "standing"
"""The step that does not end."""

STOOD = "stood"
"""Method of a look that found the thread in one place twice."""

BEFORE_MODEL = "before the model"
"""What the loop's own thread does in a step before it calls its model, where it asks no loader."""

EPOCH_STARTS, BETWEEN_EPOCHS = "worker_startup", "other"
"""What the loop's own thread does where an epoch begins, and between two of them; the names of their buckets."""

BUCKET_OF = {
    "checkpoint-stall": "checkpoint",
    "compute-bound": STEPS,
    "slow-sampler": DATA_WAIT,
    "host-sync": STEPS,
    "launch-bound": STEPS,
    "low-utilization": STEPS,
    "no-step-ends": STANDING,
    "slow-callback": "callbacks",
    "slow-logging": "logging",
    "slow-start": WARMUP,
    "step-outliers": LONG_STEPS,
    "subnormal-numbers": STEPS,
    "validation-heavy": "validation",
}
"""Rules whose seconds are those of one bucket of the loop's thread, or of its steps."""


SENDS_OBJECTS = ("_object", "_object_list")
"""Ends of the names of torch's collectives for objects: no gradient is exchanged by them, and beside the exchange they
pickle."""


DRIVERS = (
    "fastai/learner.py",
    "ignite/engine/engine.py",
    "keras/src/backend/torch/trainer.py",
    "keras/src/trainers/",
    "lightning/pytorch/loops/",
    "lightning/pytorch/trainer/",
    "pytorch_lightning/loops/",
    "pytorch_lightning/trainer/",
    "transformers/trainer.py",
    "ultralytics/engine/",
)
"""Files, or folders, of what drives a loop for its user, whose call of it owns nothing of what it calls in turn."""

MACHINERY = (
    "accelerate/utils/operations.py",
    "stallmeter/",
    "torch/amp/autocast_mode.py",
    "torch/nn/modules/module.py",
    "torch/utils/_contextlib.py",
    "torch/utils/data/_utils/fetch.py",
    "torch/utils/data/dataloader.py",
)
"""Files, or folders, of what asks the dataset for its items, and of what calls a module or a decorated function."""

LAYERS = (
    "accelerate/accelerator.py",
    "diffusers/models/",
    "lightning/fabric/",
    "lightning/pytorch/core/",
    "lightning/pytorch/plugins/",
    "lightning/pytorch/strategies/",
    "lightning_fabric/",
    "pytorch_lightning/core/",
    "pytorch_lightning/plugins/",
    "pytorch_lightning/strategies/",
    "timm/layers/",
    "timm/models/",
    "torch/_tensor.py",
    "torch/autograd/",
    "torch/nn/",
    "torchvision/models/",
    "transformers/models/",
    "transformers/pytorch_utils.py",
)
"""Files, or folders, of the layers of models, and of what hands a step to torch: every step is in them."""

COMPUTES = ("cv2.", "jax", "numexpr.", "numpy.", "scipy.", "sklearn.", "torch.", "torchaudio.", "torchvision.")
"""How the names of calls begin that may compute with several threads."""

PROFILE = "profile"
"""Method of a look that timed every call."""

LAMBDA = "<lambda>"
"""End of the name of a function without one."""


def function_key(file: str, function: str, line: int) -> tuple[str, ...]:
    """Return what tells a function from others: file and name, and of one without a name its line."""
    return (file, function, str(line)) if function.endswith(LAMBDA) else (file, function)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSpot:
    """One function in which time was spent, library calls beneath it included.

    It is the innermost function of the user's own on the stack; where there is none, the library's that holds the time.
    """

    file: str
    """Relative to the program; of a library, from its package on (``torchvision/transforms/transforms.py``)."""
    line: int
    """The line of the function in which it spent the most; counted from 1."""
    function: str
    """Qualified: ``Rotate.__call__``."""
    own: bool
    """Whether it is the user's, not a library's."""
    wall_s: float
    cpu_s: float | None = None
    """CPU time of its thread; None where that was not measured."""
    calls: tuple[str, ...] = ()
    """Library calls beneath it that took the most, the largest first: ``PIL.Image.Image.resize``."""
    called_there: str | None = None
    """The library call that takes the most in ``line``, empty where that is the line itself; None where not known."""
    line_share: float | None = None
    """Part (0 to 1) of ``wall_s`` that goes into ``line``; None where not known."""
    trains: bool = False
    """Whether the function has the model called as well: then it is told of for what it calls itself of a library."""
    interpreting_s: float = 0.0
    """Of ``wall_s``, as far as looks found it between two instructions: some hundredths of what pure Python takes, and
    hardly anything of code that computes with tensors."""
    untrained_s: float = 0.0
    """Of ``wall_s``, of a function that a module calls where it records no gradients: nothing is trained through it."""
    within: str = ""
    """Function beside the model through which it is called, itself or one around it; empty where that is not told."""

    @property
    def call_in_line(self) -> str | None:
        """The library call to name beside the line; None where there is none."""
        known = next(iter(self.calls), None) if self.called_there is None else self.called_there
        return known or None

    @property
    def package(self) -> str:
        """Package of the library call beneath it that took the most; empty where there is none."""
        return self.calls[0].partition(".")[0] if self.calls else ""

    @property
    def awaits(self) -> bool:
        """Whether it awaits what another thread or process makes, as the call beneath it that took the most tells."""
        return self.package in AWAITS

    @property
    def starts_processes(self) -> bool:
        """Whether it starts processes of Python's or waits for their end, as calls beneath it tell."""
        return any(call.startswith(STARTS) for call in self.calls)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from other functions."""
        return function_key(self.file, self.function, self.line)

    @property
    def is_place(self) -> bool:
        """Whether a user can do something there.

        Not where a loop is driven, a dataset is asked for its items, or a model is computed that a library wrote.
        """
        return self.own or not self.file.startswith((*DRIVERS, *MACHINERY, *LAYERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeStack:
    """Time with one stack of calls, for a flame graph."""

    frames: tuple[str, ...]
    """``function (file:line)``, the outermost first."""
    wall_s: float
    own: tuple[int, ...] = ()
    """Which of the frames are the user's, by their place; none in recordings from before that was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeItem:
    """An item of the dataset that took much longer than others. What it holds is not recorded."""

    index: int
    wall_s: float
    size_bytes: int | None = None
    """Of its tensors, arrays and bytes; None where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLook:
    """What one look saw."""

    time_s: float
    """Unix time of its end."""
    place: str
    """``workers``, ``loop``, ``startup`` or ``helpers``."""
    rule: str
    """The verdict that asked for it; empty where none did."""
    bucket: str = ""
    """Bucket of the ledger that was looked into, or steps; empty for workers."""
    part: str = ""
    """Its named part (a callback, a logger); empty for all of it."""
    loader: int = 0
    """Which of the training's loaders, counted from 0."""
    method: str
    """``profile`` (every call was timed), ``samples`` (of the stack), or ``stood`` (it was in one place)."""
    seen: int
    """Batches that were profiled, or samples that were taken."""
    wall_s: float
    """Time looked at."""
    cpu_s: float | None = None
    spots: tuple[CodeSpot, ...] = ()
    """The largest first; bounded."""
    items: tuple[CodeItem, ...] = ()
    """Those that made a batch slow, the slowest first; bounded."""
    repeated: tuple[CodeSpot, ...] = ()
    """Of a worker, functions by which it makes the items of all workers, before it leaves out those of others. The
    largest first; bounded."""
    unvarying: tuple[CodeSpot, ...] = ()
    """Of a worker, or of batches made in the loop, calls that are the same for each item: a file that all share is
    opened anew, a bank of filters is computed anew. The largest first; bounded."""
    item_s: float | None = None
    """Median time of an item; None where items were not timed."""
    added_s: float | None = None
    """By how much the looking made what was looked at take longer."""
    since_s: float | None = None
    """Unix time from which on the making of batches may have been looked into, which then take longer; None of other
    looks, and in recordings from before that was kept."""
    beside: tuple[CodeSpot, ...] = ()
    """Of steps, functions of the user's with what they took outside the model: neither in a module's call nor in the
    backward pass nor a function that calls these. The largest first; bounded; empty where no module was seen."""
    before: tuple[CodeSpot, ...] = ()
    """Of `beside`, what steps do before they call the model, from an earlier line. The largest first; bounded."""
    apart: tuple[CodeSpot, ...] = ()
    """Of `before`, what comes before a call that holds both the model and its gradients, and does not sleep. The
    largest first; bounded."""
    after: tuple[CodeSpot, ...] = ()
    """Functions of the user's that steps call once they have their gradients, from a later line, with what they call of
    the model. No optimizer, and no sleep. The largest first; bounded; empty where no module was seen."""
    between: tuple[CodeSpot, ...] = ()
    """Of `beside`, what steps do from the call of their model until they have their gradients, and does not sleep: a
    loss above all. The largest first; bounded; empty where no optimizer was heard of."""
    evaluated: tuple[CodeSpot, ...] = ()
    """Of steps, functions that evaluate the model in their midst, with all that they call; in none of the others."""
    functions: tuple[CodeSpot, ...] = ()
    """Of steps, functions of the user's in the forward or the backward of an autograd function of their own. The
    largest first; bounded."""
    in_modules: tuple[CodeSpot, ...] = ()
    """Of steps, functions of the user's that modules of theirs call, with all that they call but other modules. The
    largest first; bounded."""
    penalties: tuple[CodeSpot, ...] = ()
    """Of steps, functions of the user's that go through parameters between the call of the model and its gradients, or
    lines of the training's that do: in none of the others. The largest first; bounded."""
    derivatives: tuple[CodeSpot, ...] = ()
    """Of steps, functions of the user's that ask for derivatives of one output several times, each with what would be
    spared if they asked once. The largest first; bounded."""
    derivatives_s: float = 0.0
    """Of steps, of ``wall_s`` in which ``torch.autograd.grad`` computes what the program asks it for."""
    model_s: float = 0.0
    """Of steps, of ``wall_s`` below a module's call, the backward pass left out."""
    gradients_s: float = 0.0
    """Of steps, of ``wall_s`` in the backward pass."""
    collectives_s: float = 0.0
    """Of steps, of ``wall_s`` in collectives that the program calls itself: not the gradients', nor those that modules
    and optimizers of torch call."""
    buffers_s: float | None = None
    """Of steps, of ``wall_s`` in which DDP sends the model's buffers to the other ranks, and waits for these; None in
    recordings from before that was looked for."""
    meets: tuple[CodeSpot, ...] = ()
    """Functions of the user's that call these, each with what it takes in them and the collectives as its calls. The
    largest first; bounded."""
    in_line: float = 0.0
    """Of the program's other threads, the part of the looks (0 to 1) that found some of them in line for one lock."""
    tracing_s: float = 0.0
    """Of steps, of ``wall_s`` in which torch notes the stack of calls of an operation, to tell of anomalies."""
    recomputed_s: float | None = None
    """Of steps, of ``wall_s`` in which the backward pass computes again what a checkpoint of torch's did not keep; None
    in recordings from before that was looked for."""
    stacks: tuple[CodeStack, ...] = ()
    """The largest first; bounded."""

    @property
    def repeated_s(self) -> float:
        """Of ``wall_s``, what goes into `repeated`."""
        return sum(spot.wall_s for spot in self.repeated)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTrial:
    """Steps with a short switch interval of the interpreter's, and with the program's own, in turn; so far."""

    time_s: float
    pairs: int
    """Of a time with the one and a time with the other."""
    faster: int
    """Pairs in which steps were faster with the short one."""
    short_s: float
    """Interval of the short one, seconds."""
    short_step_s: float
    """Mean step with it: its own work and its wait for data."""
    usual_step_s: float
    """Mean step with the program's own."""
    stood_step_s: float | None = None
    """Of that, how long the training thread neither ran nor waited for a CPU, nor for data; None if not known."""
