"""What is done anew for each item of a dataset, though it does not depend on the item.

A file that all items share is opened for each, a table is read, a bank of filters is computed. The text of the
functions on a stack tells: a call whose arguments are made of the dataset's own attributes, of names of the module and
of constants is the same for each item, where it has no state of its own and draws no random number. Of a library's
functions that is taken of those alone that are known to read or to make something; of the user's own the text is read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from .fold import Frame, Seen
from .parsed import called, function_at

READERS = frozenset(
    {
        *("connect", "open", "open_array", "open_dataset", "open_group", "open_zarr", "safe_open", "truetype"),
        *("from_file", "from_pretrained", "load", "load_file", "loadmat", "loads", "loadtxt", "safe_load"),
        *("genfromtxt", "imread", "memmap", "read_bytes", "read_csv", "read_excel", "read_feather", "read_hdf"),
        *("read_json", "read_parquet", "read_pickle", "read_table", "read_text"),
        *("Environment", "File", "ParquetFile", "TarFile", "ZipFile"),
    }
)
"""Functions and classes that read something as a whole, or open it, by the names that libraries give them."""

MAKERS = frozenset(
    {
        *("butter", "cheby1", "cheby2", "ellip", "firwin", "firwin2", "get_window", "iirfilter", "remez"),
        *("create_dct", "mel", "melscale_fbanks", "MelSpectrogram", "MFCC", "Resample", "Spectrogram", "Compose"),
    }
)
"""The same of functions that make what items are transformed with: filters, windows, transforms."""

FROM_A_HANDLE = ("json.load", "marshal.load", "pickle.load")
"""Functions that go on in a file that is open: what they return depends on how far that one is."""

_DRAWS = re.compile(
    r"rand|rng|shuffle|choice|sampl|uniform|normal|gauss|augment|jitter|permut|seed|uuid", re.IGNORECASE
)
"""Part of the names of what is another one each time."""

_MOVES_ON = frozenset(
    {
        *("next", "iter", "read", "readline", "get", "pop", "popitem", "recv", "seek", "tell", "execute", "fetch"),
        *("fetchone", "fetchall", "fetchmany", "request", "urlopen", "send", "post", "submit", "result", "wait"),
        *("acquire", "time", "now", "monotonic", "perf_counter", "put", "print", "write"),
    }
)
"""Names of functions that go on where they were, ask somebody else, or leave something behind."""

_ADDS = frozenset({"append", "extend", "update", "add", "insert"})
"""The same where they are called of an attribute: to a list of its own a function may add."""

_KEEPS = "cache"
"""Part of the names of decorators that keep what a function returns."""


def unvarying(seen: Iterable[Seen]) -> list[Seen]:
    """Return the stacks of what is called with the same arguments for each item, each up to that call.

    Args:
        seen: Of batches that a worker, or the loop, makes.
    """
    found = []
    for one in seen:
        at = _first_call(one.stack)
        if at is not None:
            found.append(replace(one, stack=one.stack[: at + 1]))
    return found


def _first_call(stack: Sequence[Frame]) -> int | None:
    """Return which frame of a stack, the outermost, is called with the same arguments for each item."""
    is_same = False
    """Whether what the function before was given is the same each time."""
    for at, (frame, callee) in enumerate(pairwise(stack)):
        own, name = frame.function.own, _name(callee)
        if not own:
            is_same = False
            continue
        line = frame.line - frame.function.first_line + 1
        method = _is_method(frame.function.name)
        is_same = _calls_the_same(
            frame.path, frame.function.first_line, line, name, method=method, given_the_same=is_same
        )
        if is_same and (callee.function.own or _is_known(callee)) and _is_repeatable(stack[at + 1 :]):
            return at + 1
    return None


def _is_method(name: str) -> bool:
    return not name.rpartition(".")[0].endswith("<locals>") and "." in name


def _name(frame: Frame) -> str:
    """Return by which name a program calls a function: of what makes an object, its class."""
    *before, last = (frame.function.dotted or frame.function.name).split(".")
    return before[-1] if before and last in ("__init__", "__new__", "__call__") else last


def _is_known(frame: Frame) -> bool:
    return _name(frame) in READERS or _name(frame) in MAKERS


def _is_repeatable(beneath: Sequence[Frame]) -> bool:
    """Whether a function does the same when it is called again, as far as it and what it calls can tell."""
    for frame in beneath:
        function = frame.function
        if function.own:
            if not _leaves_nothing(frame.path, function.first_line):
                return False
        elif _is_known(frame):
            return True
        elif _is_of_another_kind(function.dotted or function.name):
            return False
    return True


@lru_cache(maxsize=256)
def _leaves_nothing(path: str, first_line: int) -> bool:
    """Whether a function of the user's sets no attribute, draws no random number and is not kept by a decorator."""
    function = _function(path, first_line)
    if function is None or _attributes_set(function):
        return False
    kept = any(_KEEPS in name.lower() for one in function.decorator_list for name in _all_named(one))
    return not kept and not any(
        isinstance(node, (ast.Global, ast.Nonlocal)) or _is_yield(node) or _is_another(node)
        for node in ast.walk(function)
    )


@lru_cache(maxsize=256)
def _function(path: str, first_line: int) -> ast.FunctionDef | None:
    """Return the text of a function, parsed once for all of its lines; None where that is none, or no ``def``."""
    body = getattr(function_at(path, first_line), "body", None)
    return body[0] if body and isinstance(body[0], ast.FunctionDef) else None


def _attributes_set(function: ast.FunctionDef) -> set[str]:
    return {
        node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


@lru_cache(maxsize=4096)
def _is_of_another_kind(dotted: str) -> bool:
    """Whether a library's function is another one each time, by its names but the package's."""
    return any(map(_has_state, dotted.split(".")[1:]))


def _has_state(name: str) -> bool:
    return name not in READERS and name not in MAKERS and (name in _MOVES_ON or bool(_DRAWS.search(name)))


def _is_another(node: ast.AST) -> bool:
    """Whether something is another one each time, by its name: what it is a part of may be a module, ``time`` say."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _has_state(node.func.id)
    if isinstance(node, ast.Name):
        return bool(_DRAWS.search(node.id))
    if not isinstance(node, ast.Attribute):
        return False
    return _has_state(node.attr) or (node.attr in _ADDS and not isinstance(node.value, ast.Name))


def _all_named(node: ast.AST) -> list[str]:
    parts = ((one.id if isinstance(one, ast.Name) else getattr(one, "attr", "")) for one in ast.walk(node))
    return [name for name in parts if name]


@lru_cache(maxsize=1024)
def _calls_the_same(path: str, first_line: int, line: int, name: str, *, method: bool, given_the_same: bool) -> bool:
    """Whether a function is called in a line with what does not depend on the item, and is not kept.

    Args:
        path: Of the file of the function that calls it.
        first_line: Of that one's code.
        line: Of the call, counted from 1 in that function.
        name: By which it is called.
        method: Whether that one is a class' function, and the first it is given the object that it is of.
        given_the_same: Whether the function that calls it is called with the same arguments each time itself.
    """
    function = _function(path, first_line)
    if function is None or any(map(_is_yield, ast.walk(function))):
        return False
    there = _Body(function, method=method, given_the_same=given_the_same)
    calls = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and called(node) == name and node.lineno <= line <= (node.end_lineno or line)
    ]
    return bool(calls) and all(there.is_same(call) and not there.keeps(call) for call in calls)


def _is_yield(node: ast.AST) -> bool:
    """Whether it belongs to a generator: what stands in one is done once for all of its items."""
    return isinstance(node, (ast.Yield, ast.YieldFrom))


class _Body:
    """Which expressions of a function are the same each time that it is called.

    Args:
        function: Its text.
        method: Whether its first argument is its object.
        given_the_same: Whether its arguments are.
    """

    def __init__(self, function: ast.FunctionDef, *, method: bool, given_the_same: bool) -> None:
        arguments = function.args
        method = method and not any(
            name == "staticmethod" for one in function.decorator_list for name in _all_named(one)
        )
        given = [*arguments.posonlyargs, *arguments.args][method:] + arguments.kwonlyargs
        given += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        self._varying = set() if given_the_same else {one.arg for one in given}
        self._nodes = list(ast.walk(function))
        self._set = _attributes_set(function)
        self._spread()

    def _spread(self) -> None:
        """Names that are given something that varies vary, and what is made of these."""
        while True:
            before = len(self._varying)
            for node in self._nodes:
                value, target = _given(node)
                if value is not None and target is not None and not self.is_same(value):
                    self._varying.update(one.id for one in ast.walk(target) if isinstance(one, ast.Name))
                elif isinstance(node, ast.Call) and not all(map(self.is_same, node.args)):
                    self._varying.update(_before(node).split())  # a list to which it is added, say
            if len(self._varying) == before:
                return

    def is_same(self, value: ast.AST) -> bool:
        """Whether it depends on no argument, has no state and is no random number."""
        if isinstance(value, ast.Call):
            name = called(value)
            if f"{_before(value)}.{name}" in FROM_A_HANDLE and any(
                isinstance(one, ast.Attribute) for one in value.args
            ):
                return False
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id in self._varying:
                return False
            if isinstance(node, ast.Attribute) and node.attr in self._set:
                return False
        return not any(map(_is_another, ast.walk(value)))

    def keeps(self, call: ast.Call) -> bool:
        """Whether what a call returns is kept beyond the function: in an attribute, or in what has keys."""
        given = [
            (value, target) for value, target in map(_given, self._nodes) if value is not None and target is not None
        ]
        targets = [target for value, target in given if any(one is call for one in ast.walk(value))]
        names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        targets += [target for value, target in given if isinstance(value, ast.Name) and value.id in names]
        return any(map(_is_beyond, targets))


def _before(call: ast.Call) -> str:
    """Return the name that a function is called of: ``np`` of ``np.load``."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    return of.id if isinstance(of, ast.Name) else ""


def _given(node: ast.AST) -> tuple[ast.AST | None, ast.AST | None]:
    """Return what a statement gives names, and these; None of what gives none."""
    if isinstance(node, ast.Assign):
        return node.value, ast.Tuple(elts=node.targets)
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        return node.value, node.target
    if isinstance(node, (ast.For, ast.comprehension)):
        return node.iter, node.target
    if isinstance(node, ast.withitem):
        return node.context_expr, node.optional_vars
    return None, None


def _is_beyond(target: ast.AST) -> bool:
    return any(isinstance(one, (ast.Attribute, ast.Subscript)) for one in ast.walk(target))
