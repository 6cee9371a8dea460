"""What is put into other people's classes, and taken out again: one method of what makes batches, torch's hooks.

Nothing of the engine is imported until the program makes an optimizer, or iterates a loader.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..timing.tracebacks import let_out
from .harmless import forget, harmless
from .startup import CALLING, FRAMEWORKS, ITERATED, OPTIMIZER, PIPELINES

if TYPE_CHECKING:
    from ..engine.options import Options
    from ..timing.ledger import Ledger
    from .loop import Loop

RECORDING = (
    "zero_code.loop",
    "delivery.trackers.lightning_logger",
    "delivery.trackers.mlflow",
    "delivery.trackers.neptune",
    "ranks.channels",
    "sources.compiler",
    "sources.cuda",
    "sources.forks",
    "sources.garbage",
    "sources.host",
    "sources.loader",
    "sources.loader.look",
    "sources.memory",
    "sources.modes",
    "sources.nvml",
    "sources.producers",
    "sources.ray_data",
    "sources.stacks.source",
    "sources.stacks.standing",
    "sources.syncs",
    "sources.torch_view",
    "report.child",
    "report.drawing",
)
"""Modules that record a run, and import what else they need."""

_wrapped: list[tuple[Any, str, Any, Any]] = []
"""Class or module, name of the method, its own, ours."""
_hooks: list[Any] = []
"""Handles of those in torch's optimizers."""
_backward: tuple[Any, Any] | None = None
"""torch's own, ours."""
_listening = False
"""Whether gradients were listened for: once is enough, until everything is taken back."""
_made_ns: int | None = None
"""When the program made the newest optimizer; None while there is none."""
_loop: Loop | None = None
_forks_seen = _end_seen = False


def wrap(module: ModuleType) -> None:
    """Let each iteration of a module's loaders begin with `Loop.begin`, and attach callbacks to its trainings."""
    name = module.__name__
    for kind in ITERATED.get(name, ()):
        _replace(getattr(module, kind, None), "__iter__", _around)
    for kind, _, method in (entry.partition(".") for entry in PIPELINES.get(name, ())):
        begins = functools.partial(_around, package=name.partition(".")[0])
        _replace(getattr(module, kind, None), method or "__iter__", begins)
    if name == OPTIMIZER:
        _replace(getattr(module, "Optimizer", None), "__init__", _heard)
        _wrap_backward()
    if name in FRAMEWORKS:
        from .frameworks import METHODS

        for kind, method, attached in METHODS[name]:
            _replace(getattr(module, kind, None), method, attached)
    if name in CALLING:
        from .named import CALLS

        for owner, call, booked in CALLS[name]:
            _replace(module if owner is None else getattr(module, owner, None), call, booked)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    own = vars(owner).get(name) if isinstance(owner, (type, ModuleType)) else None
    if own is None or any((known, method) == (owner, name) for known, method, _, _ in _wrapped):
        return
    ours = make(own)
    _wrapped.append((owner, name, own, ours))
    _exchange(owner, name, own, ours)


def _exchange(owner: Any, name: str, there: Any, instead: Any) -> None:
    """Put something in the place of what a class or module has there, and of the same in the package around it."""
    package = sys.modules.get(owner.__name__.rpartition(".")[0]) if isinstance(owner, ModuleType) else None
    for holder in (owner, package):
        if holder is not None and vars(holder).get(name) is there:
            setattr(holder, name, instead)


def unwrap() -> None:
    """Give each class its own method back where ours still stands there, and take back the hooks."""
    global _loop, _listening, _made_ns
    while _wrapped:
        owner, name, own, ours = _wrapped.pop()
        _exchange(owner, name, ours, own)
    while _hooks:
        _hooks.pop().remove()
    _unwrap_backward()
    _listening, _made_ns = False, None
    forget()
    loop, _loop = _loop, None
    if loop is not None:
        loop.close()


def choose(options: Options) -> Loop:
    """Return the loop of this process, to be measured with these options where that has not begun."""
    from ..engine.options import set_unasked

    loop = loop_of_this_process()
    if loop.run is None:
        loop.options = options
        set_unasked(options)
    return loop


def ledger_here() -> Ledger | None:
    """Return the ledger of the loop that is being recorded, for the thread that may move it; else None."""
    return None if _loop is None else _loop.ledger_here()


def _around(own: Callable[..., Iterator[Any]], package: str | None = None) -> Callable[..., Iterator[Any]]:
    """Return what begins an iteration with `Loop.begin`, unless a package's own code asks for it."""

    @functools.wraps(own)
    def __iter__(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: N807 - what tracebacks show
        make = functools.partial(own, self, *args, **kwargs)
        loop = harmless(functools.partial(_loop_that_iterates, package))
        try:
            return make() if loop is None else loop.begin(self, make)
        except BaseException as exc:
            let_out(exc)
            raise

    return __iter__


def _loop_that_iterates(package: str | None) -> Loop | None:
    is_a_part = package is not None and _package_that_asks() == package
    return None if is_a_part or _is_worker() else loop_of_this_process()


def _heard(own: Callable[..., None]) -> Callable[..., None]:
    """Return what has the steps of optimizers heard of from the first one on: now torch is complete."""

    @functools.wraps(own)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - what tracebacks show
        global _made_ns
        try:
            own(self, *args, **kwargs)
        except BaseException as exc:
            let_out(exc)
            raise
        if not _is_worker():
            if _made_ns is None:
                harmless(_import_all)  # what that takes is no part of the training, which may begin now
            _made_ns = time.perf_counter_ns()
            harmless(_hear)

    return __init__


def _import_all() -> None:
    """Import what records a run before its first batch is asked for: it takes most of a second.

    Each of the 300 modules lets go of Python's lock several times. Beside threads that compute in Python it is then
    waited for, 5 ms for each of these: 23 s in the first step of a program with two of them (our measurement).
    """
    for name in RECORDING:
        import_module(f"stallmeter.{name}")


def _package_that_asks() -> str:
    """Return the package of the code that called into this module."""
    import inspect  # only where such a loader is iterated: it takes milliseconds at the start of each interpreter

    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in (__name__, harmless.__module__):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]


def _is_worker() -> bool:
    """Whether this is a worker process of a DataLoader, whose dataset iterates one of its own."""
    told = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return told is not None and told() is not None


def loop_of_this_process() -> Loop:
    """Return the loop that nobody has told of."""
    global _loop
    if _loop is None:
        from ..engine.options import unasked
        from .loop import Loop

        _loop = Loop(unasked())
        _see_forks()
        _see_end()
    _listen()
    return _loop


def _hear() -> None:
    """Hear of every step of an optimizer from now on."""
    if _hooks or OPTIMIZER not in sys.modules:
        return
    from ..sources.optimizers import has_closure, hear_steps, is_compiling

    compiling = is_compiling()

    def before(optimizer: Any, given: Any, named: Any) -> None:
        if compiling():
            return
        called_ns = time.perf_counter_ns() if _loop is None or _loop.monitor is None else 0
        loop = harmless(loop_of_this_process) if _loop is None else _loop
        if _backward is not None:
            _unwrap_backward()
        if loop is not None:
            loop.before_update(optimizer, called_ns, _made_ns, timed=not has_closure(optimizer, given, named))

    def after(optimizer: Any, *_: Any) -> None:
        if _loop is not None and _loop.updating:  # which it is not where `before` was traced
            _loop.after_update(optimizer)

    _hooks.extend(hear_steps(before, after))


def _listen() -> None:
    """Hear of every step of an optimizer, from the first iteration of a loader on, and until then of gradients."""
    global _listening
    if _listening or OPTIMIZER not in sys.modules:
        return
    _listening = True
    _hear()
    _wrap_backward()


def _wrap_backward() -> None:
    """Hear of gradients until an optimizer steps: some programs have none, and change the weights themselves.

    Others have one that is not heard: torch before 2.6 or so does not call its hooks once something was compiled, and
    optimizers of other packages have none.
    """
    global _backward
    autograd = sys.modules.get("torch.autograd")
    own = getattr(autograd, "backward", None)
    if _backward is not None or own is None:
        return
    from ..sources.optimizers import is_compiling

    @functools.wraps(own)
    def backward(*args: Any, **kwargs: Any) -> Any:
        try:
            found = own(*args, **kwargs)
        except BaseException as exc:
            let_out(exc)
            raise
        if is_compiling()():  # asked each time: torch may not have been complete before
            return found
        made = _made_ns is not None
        loop = harmless(loop_of_this_process) if _loop is None and not made and not _is_worker() else _loop
        if loop is not None:
            loop.after_backward(optimizers=made)
        return found

    autograd.backward = backward  # type: ignore[union-attr]
    _backward = (own, backward)


def _unwrap_backward() -> None:
    global _backward
    autograd: Any = sys.modules.get("torch.autograd")
    if _backward is not None and autograd is not None:
        own, ours = _backward
        if autograd.backward is ours:
            autograd.backward = own
    _backward = None


def _see_end() -> None:
    global _end_seen
    if not _end_seen:
        _end_seen = True
        atexit.register(_tell_nothing)


def _tell_nothing() -> None:
    why = None if _loop is None else _loop.why_nothing()
    if why is not None:
        from ..engine.run_check import tell_unmeasured

        tell_unmeasured(why)


def _see_forks() -> None:
    global _forks_seen
    if not _forks_seen and hasattr(os, "register_at_fork"):
        _forks_seen = True
        os.register_at_fork(after_in_child=_renew)


def _renew() -> None:
    """In a process that was forked: its loop is another one, and two processes must not forward to one run."""
    global _loop
    if _loop is not None:
        from dataclasses import replace

        from .loop import Loop

        _loop = Loop(replace(_loop.options, trackers=None))
