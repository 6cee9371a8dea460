"""Prints how the package is built, and fails where it outgrows its limits: ``python tools/structure.py``.

It reads the source as text and imports nothing of it. Imports inside functions and under ``TYPE_CHECKING`` count: a
cycle that is only closed when a function is called is a cycle all the same. Whether ``x._y`` is private to another of
our objects is told by names: ``_y`` is defined in our package, but not in the module that reads it.
"""

from __future__ import annotations

import ast
import configparser
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stallmeter"

LARGEST_MODULE = 500
LARGEST_FUNCTION = 60
LOOSE_FILES = 10
LAYERS = 12
MONITOR_METHODS = 15
SIGNALS = 15
"""Public names of the monitor, and of each part of the window."""


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    """Dotted, without ``stallmeter.``; empty for the package itself."""
    path: Path
    tree: ast.Module
    lines: int

    @property
    def room(self) -> str:
        """The folder directly below the package, or the loose file."""
        return self.name.partition(".")[0] or "__init__"


@dataclass(frozen=True)
class Private:
    """A place that reads what is private to another module."""

    where: str
    what: str


def read(source: Path = SOURCE) -> list[Module]:
    """Return all modules of the package."""
    found = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, path, ast.parse(text), text.count("\n")))
    return found


def imports(module: Module, names: set[str], package: str = "stallmeter") -> set[str]:
    """Return the modules of the package that a module imports, anywhere in it."""
    found = set()
    own = module.name.split(".") if module.name else []
    home = own if module.path.name == "__init__.py" else own[:-1]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names if alias.name.split(".")[0] == package]
            found |= {target.partition(".")[2] for target in targets}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = home[: len(home) - node.level + 1]
            elif (node.module or "").split(".")[0] == package:
                base = []
            else:
                continue
            rest = (node.module or "").split(".") if node.module else []
            base = base + (rest if node.level else rest[1:])
            for alias in node.names:
                deeper = ".".join([*base, alias.name])
                found.add(deeper if deeper in names else ".".join(base))
    return {name for name in found if name in names and name != module.name}


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other (Tarjan's strongly connected components of two and more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                last = stack.pop()
                group.append(last)
                if last == node:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Yield each function with its lines of code: those of its docstring, and functions inside it, are its own."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield node.name, lines - (docstring.count("\n") + 1 if docstring else 0)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ("_fields", "_replace", "_asdict")


def defined_privately(module: Module) -> set[str]:
    """Return the private names that a module defines: of it, of its classes, of their objects."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)  # __slots__, setattr
    return {name for name in found if _is_private(name)}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_accesses(modules: Iterable[Module]) -> list[Private]:
    """Return where a module reads or writes what is private to another one of ours."""
    modules = list(modules)
    owned = {module.name: defined_privately(module) for module in modules}
    found = []
    for module in modules:
        elsewhere = set().union(*(names for name, names in owned.items() if name != module.name))
        foreign = elsewhere - owned[module.name]
        inherited = _bases_elsewhere(module)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in foreign and not (_is_self(node.value) and inherited):
                found.append(Private(f"{module.name}:{node.lineno}", ast.unparse(node)))
            elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("stallmeter")):
                private = [alias.name for alias in node.names if _is_private(alias.name) and alias.asname is None]
                found += [Private(f"{module.name}:{node.lineno}", f"import {name}") for name in private]
    return found


def _bases_elsewhere(module: Module) -> bool:
    """Whether a class of this module may have private names of a class in another module."""
    own = {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}
    bases = (b for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef) for b in node.bases)
    return any(ast.unparse(base).partition("[")[0] not in own for base in bases)


def public_names(module: Module, cls: str) -> list[str]:
    """Return the public methods and properties of a class."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            return [n.name for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    return []


def layers() -> list[str]:
    """Return the lines of the import contract's layers."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    lines = contracts["importlinter:contract:layers"]["layers"].split("\n")
    return [line.strip() for line in lines if line.strip()]


Said = tuple[list[str], list[str]]
"""Lines to print, and what is beyond its limit."""


def rooms_and_files(modules: list[Module]) -> Said:
    """Size of the rooms, loose files, layers."""
    rooms: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        rooms[module.room].append(module)
    said = [f"{'room':<12} {'files':>5} {'lines':>6}  largest file"]
    for room, members in rooms.items():
        if (SOURCE / room).is_dir():
            largest, lines = max(members, key=lambda m: m.lines), sum(m.lines for m in members)
            said.append(f"{room:<12} {len(members):>5} {lines:>6}  {largest.name} ({largest.lines})")
    loose = sorted(path.name for path in SOURCE.glob("*.py"))
    said.append(f"loose files: {len(loose)} ({', '.join(loose)}); layers: {len(layers())}")
    wrong = [f"{len(loose)} loose files, more than {LOOSE_FILES}"] * (len(loose) > LOOSE_FILES)
    wrong += [f"{len(layers())} layers in .importlinter, more than {LAYERS}"] * (len(layers()) > LAYERS)
    wrong += [f"{m.name} has {m.lines} lines, more than {LARGEST_MODULE}" for m in modules if m.lines > LARGEST_MODULE]
    return said, wrong


def function_sizes(modules: list[Module]) -> Said:
    """Size of the functions."""
    sizes = sorted(((lines, f"{m.name}.{name}") for m in modules for name, lines in functions(m)), reverse=True)
    lengths = sorted(lines for lines, _ in sizes)
    said = [f"functions: {len(sizes)}, median {lengths[len(lengths) // 2]} lines without docstrings, the longest:"]
    said += [f"  {lines:>4} {name}" for lines, name in sizes[:5]]
    too_long = [(lines, name) for lines, name in sizes if lines > LARGEST_FUNCTION]
    return said, [f"{name} has {lines} lines, more than {LARGEST_FUNCTION}" for lines, name in too_long]


def cycles_of(modules: list[Module]) -> Said:
    """Rooms, and modules, that import each other."""
    names = {module.name for module in modules}
    graph = {module.name: imports(module, names) - {""} for module in modules if module.name}
    between: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        between[module.room] |= {n.partition(".")[0] for n in graph.get(module.name, ())} - {module.room}
    rooms, inside = cycles(between), cycles(graph)
    said = [f"cycles between rooms, lazy imports counted: {len(rooms)}; between modules of one room: {len(inside)}"]
    said += [f"  {', '.join(group)}" for group in inside]
    return said, [f"rooms import each other: {', '.join(group)}" for group in rooms]


def surfaces(modules: list[Module]) -> Said:
    """Public names of the monitor and of the window's parts."""
    said, wrong = [], []
    for module in modules:
        limits = {"Monitor": MONITOR_METHODS}
        if module.room == "window":
            limits |= {n.name: SIGNALS for n in module.tree.body if isinstance(n, ast.ClassDef)}
        for cls, most in limits.items():
            public = public_names(module, cls)
            if public and (cls == "Monitor" or len(public) > 5):
                said.append(f"{module.name}.{cls}: {len(public)} public names")
            if len(public) > most:
                wrong.append(f"{module.name}.{cls} has {len(public)} public names, more than {most}")
    return said, wrong


def privacy(modules: list[Module]) -> Said:
    """Use of what is private to another module."""
    found = private_accesses(modules)
    said = [f"private attributes of ours that another module uses: {len(found)}"]
    return said, [f"{p.where} uses {p.what}" for p in found]


def check() -> Said:
    """Return the lines to print, and what is beyond its limit."""
    modules = read()
    parts = [part(modules) for part in (rooms_and_files, function_sizes, cycles_of, surfaces, privacy)]
    return [line for said, _ in parts for line in said], [line for _, wrong in parts for line in wrong]


def main() -> int:
    """Print, and return 1 where something is beyond its limit."""
    said, wrong = check()
    print("\n".join(said))
    for line in wrong:
        print(f"TOO MUCH: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
