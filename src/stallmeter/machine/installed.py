"""Packages as they are installed, also where a file of the program's has the name of one.

A ``psutil.py`` beside the program is what ``import psutil`` finds, in our code too: it would be run by us, before the
program or in place of it. The installed package is then imported under a name of ours, and the program's `import` gets
its own as ever.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

_INSTALLED = frozenset(("site-packages", "dist-packages"))


def torch_version() -> tuple[int, ...]:
    """Return the first two numbers of the version of torch that the program has imported; none without it."""
    said = str(getattr(sys.modules.get("torch"), "__version__", "")).split(".")
    return tuple(int(part) for part in said[:2] if part.isdigit())


def installed(name: str, distribution: str) -> ModuleType:
    """Import a package that we depend on, and nothing of the program's that has its name.

    Args:
        name: To import it by.
        distribution: The installed package's, as its metadata beside it is called.

    Raises:
        ImportError: It is not installed, or only the program has something of that name.
    """
    ours = f"_stallmeter_{name}"
    if ours in sys.modules:
        return sys.modules[ours]
    there = sys.modules.get(name)
    found = find_spec(name) if there is None else getattr(there, "__spec__", None)
    if found is None and there is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if found is not None and _is_installed(found, distribution):
        return importlib.import_module(name)
    spec = _elsewhere(name, distribution)
    if spec is not None:
        return _import_as(ours, spec)
    if found is not None and _folder(found) not in (
        None,
        *program_folders(),
    ):  # laid out in a way that is not known here
        return importlib.import_module(name)
    where = None if found is None else found.origin
    raise ImportError(f"{where or name} is not the package {distribution}, which is not installed", name=name)


def _is_installed(spec: ModuleSpec, distribution: str) -> bool:
    folder = _folder(spec)
    if folder is None:
        return getattr(sys, "frozen", False)
    if _INSTALLED.intersection(folder.parts):
        return True
    begin = distribution.replace("-", "_").lower()
    try:
        names = [entry.lower().replace("-", "_") for entry in os.listdir(folder)]  # noqa: PTH208 - names are all
    except OSError:  # an archive
        return False
    return any(entry.startswith(f"{begin}_") and entry.endswith((".dist_info", ".egg_info")) for entry in names)


def _folder(spec: ModuleSpec) -> Path | None:
    """Return the folder on the path in which it was found; None where it comes from no file."""
    if not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin).absolute()
    return file.parent if spec.submodule_search_locations is None else file.parent.parent


def program_folders() -> list[Path]:
    """Return where the program lies, and where it works."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return [Path.cwd(), *([] if program is None else [Path(program).absolute().parent])]
    except OSError:  # its folder has been deleted
        return []


def _elsewhere(name: str, distribution: str) -> ModuleSpec | None:
    """Find an installed package without importing what stands before it."""
    for entry in sys.path:
        spec = _found(name, [entry])
        if spec is not None and _folder(spec) is not None and _is_installed(spec, distribution):
            return spec
    return None


def _found(name: str, path: Sequence[str]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, path)
    except (OSError, ValueError, ImportError):  # what stands on the path may be anything
        return None


def _import_as(name: str, spec: ModuleSpec) -> ModuleType:
    assert spec.origin is not None
    renamed = spec_from_file_location(name, spec.origin, submodule_search_locations=spec.submodule_search_locations)
    if renamed is None or renamed.loader is None:
        raise ImportError(f"{spec.origin} cannot be imported", name=name)
    module = module_from_spec(renamed)
    sys.modules[name] = module
    try:
        renamed.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _look_at_itself(module)
    return module


def _look_at_itself(module: ModuleType) -> None:
    """Have psutil ask the module that it is where /proc lies, and not what is called psutil in the program."""

    def get_procfs_path() -> str:
        return str(module.PROCFS_PATH)

    for name, part in tuple(sys.modules.items()):
        if name.startswith(f"{module.__name__}.") and hasattr(part, get_procfs_path.__name__):
            setattr(part, get_procfs_path.__name__, get_procfs_path)
