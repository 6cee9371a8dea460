"""The models that a program's running functions know by name, and the parts of these with certain parameters."""

from __future__ import annotations

import dis
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, FunctionType, GetSetDescriptorType, ModuleType
from typing import Any

from ...timing.tables import name_inside

MOST_HELD = 64
"""Members of a list, a dict or an object that are looked at: a model that is trained stands among the first."""

DEEPEST = 100
"""Frames that are looked at, the innermost."""

OPTIMIZED = 0x1
"""``inspect.CO_OPTIMIZED``: of code whose names are no dict, a function's."""

ASKS_FOR_NAMES = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Up to Python 3.12 these return the dict that a look would fill anew: who calls them is left alone."""

OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""Instructions that look a name up, and no attribute."""

OF_A_COPY = 3
"""References to a copy of a frame's variables that nobody else holds, while they are counted."""


def models_of(frame: FrameType | None, kind: type) -> list[tuple[str, Any]]:
    """Return the modules that the functions of a stack know by name: as variables, in lists, as attributes of objects.

    Args:
        frame: The innermost; of the thread that asks.
        kind: ``torch.nn.Module``.
    """
    found: dict[int, tuple[str, Any]] = {}
    spaces: set[int] = set()
    for _ in range(DEEPEST):
        if frame is None:
            break
        if not str(frame.f_globals.get("__name__")).startswith(("stallmeter.", "torch.")):
            held = _variables(frame)
            if id(frame.f_globals) not in spaces:
                spaces.add(id(frame.f_globals))
                held += list(frame.f_globals.items())
            for name, value in held:
                for path, model in _held(name, value, kind):
                    found.setdefault(id(model), (path, model))
        frame = frame.f_back
    return list(found.values())


def _variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a function that runs; of a module they are its globals."""
    code = frame.f_code
    if not code.co_flags & OPTIMIZED or (not ASKS_FOR_NAMES.isdisjoint(code.co_names) and _asks_for_names(code)):
        return []
    names = frame.f_locals
    found = list(names.items())
    # Up to Python 3.12 the frame keeps this copy, and with it what the function lets go of later. Whoever has asked for
    # it before us has the same dict: its references are the frame's, the one here, and the question's.
    if isinstance(names, dict) and sys.getrefcount(names) <= OF_A_COPY:
        names.clear()
    return found


@lru_cache(256)
def _asks_for_names(code: CodeType) -> bool:
    """Whether a function calls what returns its variables, and not a method of the same name: ``model.eval()``."""
    return any(
        instruction.argval in ASKS_FOR_NAMES and instruction.opname.startswith(OF_GLOBALS)
        for instruction in dis.get_instructions(code)
    )


def _held(name: str, value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    # By its type: asking an object for its class may run code of the program.
    type_ = type(value)
    if issubclass(type_, kind):
        yield name, value
        return
    members: Iterable[tuple[Any, Any]]
    if type_ in (list, tuple):
        members = ((f"{name}[{place}]", one) for place, one in enumerate(value[:MOST_HELD]))
    elif type_ is dict:
        # Names, and no data of the program's.
        members = [(f"{name}[{key!r}]", one) for key, one in _first(value) if type(key) is str and key.isidentifier()]
    elif issubclass(type_, (type, ModuleType, FunctionType)):
        return
    else:
        members = [(key if name == "self" else f"{name}.{key}", one) for key, one in _first(attributes(value))]
    for path, one in members:
        if issubclass(type(one), kind):
            yield path, one


def _first(held: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return list(islice(held.items(), MOST_HELD))


def attributes(value: Any) -> Mapping[Any, Any]:
    """Return what an object holds, by Python's own descriptor: another one is code of the program's."""
    descriptor = next((base.__dict__["__dict__"] for base in type(value).__mro__ if "__dict__" in base.__dict__), None)
    found = descriptor.__get__(value) if isinstance(descriptor, GetSetDescriptorType) else None
    return found if type(found) is dict else {}


@dataclass(frozen=True, slots=True)
class Part:
    """A module all of whose gradients are in vain."""

    name: str
    kind: str
    numbers: int


def parts_of(name: str, module: Any, kind: Any, suspects: Collection[int], updated: Collection[int]) -> Iterator[Part]:
    """Return the largest parts of a model that have suspects, and nothing that is updated."""
    own = list(parameters_of(module, kind))
    theirs = [p for p in own if id(p) in suspects]
    if not theirs:
        return
    if not any(id(p) in updated for p in own):
        yield Part(name, type(module).__name__, sum(p.numel() for p in theirs))
        return
    for child, part in kind.named_children(module):
        yield from parts_of(name_inside(name, child), part, kind, suspects, updated)


def largest_part(
    models: Iterable[tuple[str, Any]], kind: Any, suspects: Collection[int], updated: Collection[int]
) -> Part:
    """Return the largest part of all models that has suspects, and nothing that is updated; one of no name if none."""
    return next(iter(largest_parts(models, kind, suspects, updated)), Part("", "", 0))


def largest_parts(
    models: Iterable[tuple[str, Any]], kind: Any, suspects: Collection[int], updated: Collection[int]
) -> list[Part]:
    """Return all such parts of the model that has the largest one, by their size."""
    of_models = (list(parts_of(name, model, kind, suspects, updated)) for name, model in models)
    found = [sorted(parts, key=_size, reverse=True) for parts in of_models if parts]
    return max(found, key=lambda parts: _size(parts[0]), default=[])


def _size(part: Part) -> tuple[int, int]:
    return part.numbers, -len(part.name)


def parameters_of(module: Any, kind: Any) -> Iterator[Any]:
    """Yield a module's parameters by torch's own method: another one is code of the program's, or of Keras'."""
    return (parameter for _, parameter in kind.named_parameters(module))


def is_plain(parameter: Any, plain: object) -> bool:
    """Whether it is a tensor of this process alone, with values, whose writes torch counts."""
    if type(parameter) is not plain:
        return False
    return parameter.device.type != "meta" and not parameter.is_inference()
