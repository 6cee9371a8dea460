"""Finds what the command line names: ``package.module:factory`` or ``path/to/file.py:factory``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import SettingError
from .trainer import lightning_namespace

WANTED = "(module, data) for Lightning, with a dict of Trainer arguments behind them if need be, or (step, loader)"


def import_target(target: str) -> dict[str, Any]:
    """Import a module or a file, call the factory in it, and return arguments for `probe`.

    Args:
        target: ``package.module:name`` or ``file.py:name``. A callable is called without arguments; anything else is
            taken as it is.

    Raises:
        SettingError: There is no such module, file or name, it needs arguments, or gives something else than a pair.
        Exception: Whatever the module or the factory raises.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise SettingError(f"{target!r} names no factory; write package.module:factory or path/to/file.py:factory")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise SettingError(f"{where!r} has no {name!r}; it must be there when the module is imported")
        thing = getattr(thing, part)
    if callable(thing):
        _check_takes_nothing(thing, target)
        thing = thing()
    return _arguments(thing, target)


def _check_takes_nothing(factory: Callable[..., object], target: str) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some of C have none
        return
    try:
        signature.bind()
    except TypeError as exc:
        raise SettingError(f"{target!r} is called without arguments: {exc}; name one that needs none") from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SettingError(f"there is no file {str(path)!r}")
    # As if it were run: what lies beside it can be imported, and spawned workers find it by its name.
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if path.stem in sys.modules or spec is None or spec.loader is None:
        raise SettingError(f"{str(path)!r} cannot be imported as {path.stem!r}, a name that is taken; rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise
        raise SettingError(f"there is no module {exc.name!r}; for a file write path/to/file.py:factory") from exc


def _arguments(given: Any, target: str) -> dict[str, Any]:
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
        raise SettingError(f"{target!r} gives {type(given).__name__}; it must give {WANTED}")
    first, second, *rest = given
    if lightning_namespace(first) is not None:
        if rest and not isinstance(rest[0], dict):
            raise SettingError(f"{target!r} gives {type(rest[0]).__name__} as third; it must give {WANTED}")
        return {"module": first, "data": second, "trainer_kwargs": rest[0] if rest else None}
    if rest or not callable(first) or hasattr(first, "parameters"):
        raise SettingError(f"{target!r} gives {type(first).__name__} first; it must give {WANTED}")
    return {"step": first, "loader": second}
