"""Whose a function is, and what it is called: the user's own, a library's, or code that something generated.

Files and names are looked at; nothing is imported, and no code of the program's is run.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ...records.code import LAMBDA
from . import outline
from .roles import Role, role_of

DECORATORS = 4
"""So many around a function are looked through for it, as ``functools.wraps`` leaves them."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of libraries, by name: several environments may be on one path."""

_CELL = re.compile(r"ipython-input-(\d+)|ipykernel_\d+[/\\](\d+)\.py$")
_INNER = re.compile(r"(\.<locals>)?\.?<(listcomp|setcomp|dictcomp|genexpr)>")
"""Comprehensions are functions to the interpreter (before 3.12) and part of their function to everybody else."""

_MODULES = {"_thread": "threading", "builtins": ""}
"""Under which name the public knows a private module, where that is not the name without its underscore."""

_OWN_FOLDER = str(Path(__file__).resolve().parents[2]) + os.sep
_DEMO_FOLDER = os.path.join(_OWN_FOLDER, "demo") + os.sep  # noqa: PTH118 - as the one above
"""The demo is a program like any other: what it makes its batches with is a place."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function as it is shown."""

    name: str
    """Qualified within its module: ``Rotate.__call__``."""
    file: str
    """Relative to the program; of a library, from its package on; empty for one that is not written in Python."""
    own: bool
    """Whether it is the user's."""
    dotted: str = ""
    """Of a library, as the public knows it where that can be told: ``PIL.Image.Image.rotate``."""
    package: str = ""
    """Of a library; empty for the user's own, and for builtins."""
    standard: bool = False
    """Whether it comes with Python."""
    generated: bool = False
    """Whether something wrote it at run time: a dataclass, a decorator. It belongs to who called it."""
    first_line: int = field(default=0, compare=False)
    """Where it is defined; 0 where it has no lines."""
    lambda_line: int = 0
    """Where it is defined if it has no name, so that the next lambda in the same function is another one."""
    role: Role = field(init=False, compare=False, repr=False)
    """What it does for a training."""

    def __post_init__(self) -> None:
        """Work out what it does, once: each look at a stack asks for it several times."""
        object.__setattr__(self, "role", role_of(self.file, self.name, own=self.own))

    @property
    def is_public(self) -> bool:
        """Whether a user would call it by this name."""
        return _is_public(self.dotted or self.name)

    @property
    def has_public_name(self) -> bool:
        """The same wherever it is defined: a private module's functions are often called by another one's name."""
        return _is_public(self.name)


def _is_of_dataclass(code: CodeType, name: str) -> bool:
    """Whether `dataclasses` wrote this method of a class: within a function of its own, in the second line of a text.

    Python 3.10 says of no function which one it is within, so it is told by that line and by the kind of its name.
    """
    if hasattr(code, "co_qualname"):
        return "__create_fn__" in name
    return code.co_firstlineno == 2 and name.startswith("__")


def _is_public(name: str) -> bool:
    parts = name.split(".")
    return bool(parts[-1]) and not any(part.startswith(("_", "<")) for part in parts)


class Whose:
    """Names functions. Answers are kept, for a stack has the same ones again and again.

    Args:
        roots: Folders of the program: what lies in one is shown relative to it, the first one first.
    """

    def __init__(self, roots: Iterable[str | os.PathLike[str]] = ()) -> None:
        # Both, because Python resolves links in where it looks for modules and not in the program's own name.
        self._roots = [str(path) for root in roots for path in (Path(root).absolute(), Path(root).resolve())]
        self._standard = _standard_folders()
        # By identity: equal code in two places is two functions. The code is kept, so that no id comes again.
        self._known: dict[int, tuple[CodeType, Function]] = {}
        self._texts: dict[str, list[str]] = {}

    @classmethod
    def of_program(cls) -> Whose:
        """Return what names the functions of this process: its program's folder is the root, then the present one."""
        return cls(_program_folders())

    def code(self, code: CodeType, module: str | None = None) -> Function:
        """Return what a Python function is.

        Args:
            code: Of the function.
            module: ``__name__`` of its globals, where that is known: tells a program given by ``-c``.
        """
        known = self._known.get(id(code))
        if known is None:
            function = self._name(code, module)
            if function.name.endswith(LAMBDA):
                function = replace(function, lambda_line=function.first_line)
            known = self._known[id(code)] = code, function
        return known[1]

    def first_own(self, stack: Iterable[tuple[CodeType, int, str | None]]) -> tuple[str, int, str]:
        """Return file, line and name of the first function that is the program's own; empty where none is.

        Args:
            stack: Code, line and module of the functions that run, the innermost first.
        """
        for code, line, module in stack:
            function = self.code(code, module)
            if function.own:
                return function.file, line, function.name
        return "", 0, ""

    def builtin(self, function: object) -> Function:
        """Return what a function is that is not written in Python."""
        module, name = _builtin_names(function)
        module = _MODULES.get(module, module.lstrip("_") if module.lstrip("_") in sys.modules else module)
        shown = _exported(module, name, function) if module else name
        package = module.partition(".")[0]
        standard = not package or package in sys.stdlib_module_names
        return Function(name=name, file="", own=False, dotted=shown, package=package, standard=standard)

    def _name(self, code: CodeType, module: str | None) -> Function:
        path = code.co_filename
        name = _INNER.sub("", self._qualified(code)) or "<module>"  # a comprehension beside all functions
        line = code.co_firstlineno
        cell = _CELL.search(path)
        if cell:
            return Function(name=name, file=_cell_name(path, cell), own=True, first_line=line)
        if path.startswith("<"):
            is_typed = path == "<stdin>" or (
                path == "<string>" and module == "__main__" and not _is_of_dataclass(code, name)
            )
            return Function(name=name, file=path, own=is_typed, generated=not is_typed, first_line=line)
        if path.startswith(_DEMO_FOLDER):
            return Function(name=name, file=PurePath(path[len(_DEMO_FOLDER) :]).as_posix(), own=True, first_line=line)
        installed = self._installed(path)
        if installed is None:
            return Function(name=name, file=self._relative(path), own=True, first_line=line)
        file, standard = installed
        dotted = module if module and module != "__main__" else _module_of(file)
        return Function(
            name=name,
            file=file,
            own=False,
            dotted=_exported(dotted, name, code),
            package=dotted.partition(".")[0],
            standard=standard,
            first_line=line,
        )

    def _installed(self, path: str) -> tuple[str, bool] | None:
        """Return the path from the package on and whether it comes with Python; None for the user's own."""
        parts = PurePath(path).parts
        at = [i for i, part in enumerate(parts) if part in INSTALLED]
        if at:
            return "/".join(parts[at[-1] + 1 :]), False
        for folder in self._standard:
            if path.startswith(folder):
                return PurePath(path[len(folder) :]).as_posix(), True
        if path.startswith(_OWN_FOLDER):
            return "stallmeter/" + PurePath(path[len(_OWN_FOLDER) :]).as_posix(), False
        return None

    def _relative(self, path: str) -> str:
        if not Path(path).is_absolute():
            return PurePath(os.path.normpath(path)).as_posix() if path else "?"
        for root in self._roots:
            inside = path[len(root) :] if path.startswith(root.rstrip(os.sep) + os.sep) else ""
            if inside:
                return PurePath(inside.lstrip(os.sep)).as_posix()
        return _from_package(Path(path))

    def _qualified(self, code: CodeType) -> str:
        found = getattr(code, "co_qualname", None)  # from Python 3.11 on
        if found is not None:
            return str(found)
        text = self._texts.get(code.co_filename)
        if text is None:
            text = []
            with suppress(ValueError):  # no name of a file
                text = outline.blanked(linecache.getlines(code.co_filename))
            self._texts[code.co_filename] = text
        return outline.qualified(text, code.co_firstlineno, code.co_name)


def _program_folders() -> list[Path]:
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    found = []
    if isinstance(path, str) and not INSTALLED & set(PurePath(path).parts):
        name = getattr(getattr(main, "__spec__", None), "name", None)
        # Of ``python -m package.module`` it is the folder above the package.
        up = name.count(".") if isinstance(name, str) else 0
        folder = ([*Path(path).absolute().parents[up:], Path(path).absolute().parent])[0]
        if not str(folder).startswith(tuple(_standard_folders())):
            found.append(folder)
    with suppress(OSError):  # it was removed
        found.append(Path.cwd())
    return found


def _standard_folders() -> list[str]:
    names = ("stdlib", "platstdlib")
    folders = {path for name in names if (path := sysconfig.get_path(name))}
    folders |= {os.path.realpath(path) for path in folders} | {str(Path(os.__file__).parent)}
    return sorted((folder.rstrip(os.sep) + os.sep for folder in folders), key=len, reverse=True)


def _cell_name(path: str, cell: re.Match[str]) -> str:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None)
    number = numbers.get(path) if isinstance(numbers, dict) else cell.group(1)
    return f"<cell {number}>" if number else "<cell>"


def _from_package(path: Path) -> str:
    """Return the path from the top package on: what lies elsewhere on the disk is nobody's business."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return path.relative_to(folder).as_posix()


def _module_of(file: str) -> str:
    parts = list(PurePath(file).with_suffix("").parts)
    if parts and parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _exported(module: str, name: str, what: object) -> str:
    """Return the name with the shortest module from which the same object can be had: ``requests.get``."""
    first, _, rest = name.partition(".")
    parts = module.split(".")
    for i in range(1, len(parts)):
        outer = ".".join(parts[:i])
        found = _member(outer, first)
        if _is_same(found, module, first, rest, what):
            return f"{outer}.{name}"
    return f"{module}.{name}" if module else name


def _member(module: str, name: str) -> object:
    held = sys.modules.get(module)
    return vars(held).get(name) if isinstance(held, ModuleType) else None


def _is_same(found: object, module: str, first: str, rest: str, what: object) -> bool:
    if issubclass(type(found), type):
        held = vars(found)
        return bool(rest) and held.get("__module__") == module and getattr(found, "__name__", None) == first
    if rest:
        return False
    for _ in range(DECORATORS):
        if found is what or (type(found) is FunctionType and found.__code__ is what):
            return True
        found = vars(found).get("__wrapped__") if type(found) is FunctionType else None
    return False


def _builtin_names(function: object) -> tuple[str, str]:
    """Return the module and the qualified name of a function that is not written in Python."""
    kind = type(function)
    name = str(getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or kind.__name__)
    bound = getattr(function, "__self__", None)
    holder = getattr(function, "__objclass__", None)
    module = getattr(function, "__module__", None)
    if isinstance(bound, ModuleType):
        module = module or bound.__name__
    elif isinstance(module, str):
        name = name.rpartition(".")[2] if name.startswith("_") else name  # torch's: _VariableFunctionsClass.stack
    elif isinstance(holder, type) or bound is not None:
        kinds = [holder] if isinstance(holder, type) else (bound if isinstance(bound, type) else type(bound)).__mro__
        module = next((_module_name(one) for one in kinds if one.__name__ == name.partition(".")[0]), "")
    return module if isinstance(module, str) else "", name


def _module_name(kind: Any) -> str:
    found = getattr(kind, "__module__", "")
    return found if isinstance(found, str) else ""
