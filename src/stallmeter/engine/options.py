"""What a program may choose: the options of `watch`, of `Monitor` and of every adapter."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_type_hints

from ..delivery.choice import Trackers, check_trackers
from ..delivery.periods import BASE_PERIOD_S
from ..errors import SettingError
from ..ranks.ray import ray_worker
from ..records.interfaces import Source
from ..rules import ALL_RULES
from ..rules.rule import Rule, check_names, check_rules
from ..workers.apply import OnNumWorkers, check_mode
from .environment import DIRECTORY, variable

CLOSE_BUDGET_S = 10.0
"""Most seconds that the end of a run is delayed by trackers that have not got everything."""

F = TypeVar("F", bound=Callable[..., Any])


class OptionArguments(TypedDict, total=False):
    """The fields of `Options`, as type checkers and editors want them for ``**options: Unpack[OptionArguments]``."""

    directory: str | os.PathLike[str] | None
    trackers: Trackers
    rules: Sequence[Rule]
    sources: Sequence[Source]
    hardware: bool
    workers: bool
    interval_s: float
    period_s: float
    close_budget_s: float
    console: bool
    on_num_workers: OnNumWorkers
    sync_probe_steps: int
    deep_steps: int
    loop_looks: bool
    deep_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a program may choose; the defaults are what you get when you say nothing.

    Raises:
        SettingError: An option makes no sense.
    """

    directory: str | os.PathLike[str] | None = None
    """Where recordings go, each run in a folder of its own; ``STALLMETER_DIR`` or ``./stallmeter`` by default, under
    Ray Train ``stallmeter`` in its storage path."""
    trackers: Trackers = "auto"
    """Where the recording is forwarded: ``auto`` takes the trainer's loggers or the active MLflow run, ``mlflow`` makes
    a run when there is none, a run of Neptune's is taken as it is, None forwards nothing."""
    rules: Sequence[Rule] = ALL_RULES
    """What is looked for: ``(*ALL_RULES, MyRule())`` adds one."""
    sources: Sequence[Source] = ()
    """Measured besides the usual hardware."""
    hardware: bool = True
    """Whether to sample the host and the GPUs."""
    workers: bool = True
    """Whether to measure inside the training loader's workers."""
    interval_s: float = 1.0
    """Seconds between two samples of the hardware."""
    period_s: float = BASE_PERIOD_S
    """Seconds between two points on a tracker; grows with the run."""
    close_budget_s: float = CLOSE_BUDGET_S
    """Most seconds by which the end of the run may be delayed to deliver what is left."""
    console: bool = True
    """Whether to say the verdict on stderr at the end; after an exception, only where the recording is."""
    on_num_workers: OnNumWorkers = "report"
    """``report`` says what number of workers is advised; ``apply`` sets it on the training loader between two epochs,
    measures, and keeps what is faster; a function is called between epochs with the `WorkerAdvice` and may return a
    number."""
    sync_probe_steps: int = 2
    """Steps in which calls that wait for a CUDA device are looked for, once, where the device idles inside the steps;
    0 for none."""
    deep_steps: int = 0
    """Steps of torch.profiler when the cause lies inside the step, once; 0 for none. Not beside a PyTorchProfiler of
    Lightning's Trainer."""
    loop_looks: bool = True
    """Whether to look at the training thread's stack, from a thread beside it, where a bucket of its time is in
    question; and a few times, from the thread itself, which parameters of its models get gradients in vain."""
    deep_batches: int = 3
    """Most batches in which every call is timed, where they are made, when making them is the cause; once, and again
    with another number of workers. 0 for none."""

    @classmethod
    def of(cls, arguments: OptionArguments) -> Options:
        """Return the options that a program gave as keyword arguments.

        Raises:
            TypeError: There is no such option.
            SettingError: An option makes no sense.
        """
        known = [field.name for field in fields(cls)]
        for name in arguments:
            if name not in known:
                import difflib  # for this message alone

                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise TypeError(f"there is no option {name!r}; {hint}")
        return cls(**arguments)

    def given(self) -> dict[str, Any]:
        """Return the options as keyword arguments, for who takes them as such."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __post_init__(self) -> None:
        """Refuse what makes no sense, in the program's own line and not when the run starts."""
        self._check_directory()
        check_trackers(self.trackers)
        for name in ("rules", "sources"):
            object.__setattr__(self, name, _several(name, getattr(self, name)))
        shipped = set(map(id, ALL_RULES))  # tests have checked them
        check_rules(rule for rule in self.rules if id(rule) not in shipped)
        check_names(self.rules)
        for source in self.sources:
            if not isinstance(source, Source):
                raise SettingError(f"sources holds {source!r}, which has no name, sample(time_s) and close()")
        self._check_switches()
        self._check_numbers()
        check_mode(self.on_num_workers)
        if self.on_num_workers != "report" and not self.workers:
            raise SettingError(
                f"on_num_workers is {self.on_num_workers!r}, which needs what workers=False switches off; "
                "leave that out"
            )

    def _check_directory(self) -> None:
        if self.directory is None:
            return
        path = os.fspath(self.directory) if isinstance(self.directory, (str, os.PathLike)) else None
        if not isinstance(path, str) or not path.strip():
            raise SettingError(f"directory is {self.directory!r}; give a path")

    def _check_switches(self) -> None:
        """Text is never a switch: ``"false"`` would count as true."""
        for name in ("hardware", "workers", "console", "loop_looks"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise SettingError(f"{name} is {value!r}; give True or False")

    def _check_numbers(self) -> None:
        for name in ("interval_s", "period_s"):
            value = getattr(self, name)
            if not _is_number(value) or not 0.01 <= value <= 86_400:
                raise SettingError(f"{name} is {value!r}; give a number of seconds between 0.01 and 86400")
        for name in ("sync_probe_steps", "deep_steps", "deep_batches"):
            value, of = getattr(self, name), name.rpartition("_")[2]
            if not _is_number(value, int) or not 0 <= value <= 1000:
                raise SettingError(f"{name} is {value!r}; give a number of {of} from 0, for none, to 1000")
        if not _is_number(self.close_budget_s) or not 0 <= self.close_budget_s <= 86_400:
            raise SettingError(f"close_budget_s is {self.close_budget_s!r}; give a number of seconds from 0 to 86400")

    def others(self, than: Options) -> list[str]:
        """Return the names of the options that are not the same as in others."""
        return [field.name for field in fields(self) if getattr(self, field.name) != getattr(than, field.name)]

    @property
    def recordings(self) -> Path:
        """The folder of all recordings: the option, else ``STALLMETER_DIR``, else ``./stallmeter``."""
        path = Path(self.directory if self.directory is not None else variable(DIRECTORY) or "stallmeter")
        with suppress(RuntimeError):  # nobody knows this user's home: it is a folder's name then
            return path.expanduser()
        return path

    def recordings_here(self) -> Path:
        """Return the folder of all recordings as the process that trains has it, whatever may stand there by now.

        It is the same folder after the program has changed its own.

        Raises:
            SettingError: It is temporary storage of Ray Train's.
        """
        worker = ray_worker()
        if worker is None:
            return _absolute(self.recordings)
        is_chosen = self.directory is not None or bool(variable(DIRECTORY))
        return _absolute(worker.recordings(self.recordings, is_chosen=is_chosen))

    def check_recordings(self) -> Path:
        """Return the folder of all recordings, which is made when missing.

        Raises:
            SettingError: A file stands there, or it is temporary storage of Ray Train's.
        """
        path = self.recordings_here()
        if path.is_file():
            raise SettingError(f"directory {str(path)!r} is a file; give a folder (it is made when missing)")
        return path


def _absolute(path: Path) -> Path:
    try:
        return path.absolute()
    except OSError:  # the program's folder has been deleted: the recording says so when it is begun
        return path


def _is_number(value: object, *kinds: type) -> bool:
    """Whether it is a number, and none of the two that are truth values: ``True`` is no second."""
    return isinstance(value, kinds or (int, float)) and not isinstance(value, bool)


def _several(name: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise SettingError(f"{name} is {value!r}; give a list of {name}")
    return tuple(value)


_unasked: Options | None = None


def set_unasked(options: Options | None) -> None:
    """Choose the options of whatever is measured in this process without being named; None: nothing was said."""
    global _unasked
    _unasked = options


def unasked() -> Options:
    """Return the options of what is measured without being named."""
    return _unasked or Options()


def refuse_positional(taker: object, given: tuple[object, ...]) -> None:
    """Say how options are given, in the name of the class that the program calls.

    Raises:
        TypeError: Something was given without a name.
    """
    if given:
        name, first = type(taker).__name__, given[0]
        option = f"directory={first!r}" if isinstance(first, (str, os.PathLike)) else f"option={first!r}"
        raise TypeError(f"{name} takes its options by name: {name}({option})")


def takes_options(function: F) -> F:
    """Let Python see the options that a function takes as ``**options: Unpack[OptionArguments]``.

    Type checkers know them from that. At run time it says nothing (``Unpack`` is not even imported: Python 3.10 has
    none), so ``help``, notebooks and command lines that are made of signatures are given each option with its default.
    """
    hints = get_type_hints(Options)
    signature = inspect.signature(function)
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    own = [p for p in signature.parameters.values() if p.kind not in variable]
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(Options)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    annotations = {name: hint for name, hint in function.__annotations__.items() if name in {p.name for p in own}}
    function.__annotations__ = {
        **annotations,
        **{f.name: hints[f.name] for f in fields(Options)},
        "return": function.__annotations__["return"],
    }
    return function
