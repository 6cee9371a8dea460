"""Which data a loader goes through, told in so few words that ranks can hold theirs against each other.

How much the dataset holds, how much of it a pass draws and how, and two digests of 32 bits: of what the dataset is made
of, and of the state that an order is drawn from. Nothing of the dataset's own code is called but its length, which the
sampler asks for as well. What cannot be looked into may differ from rank to rank: then there is no digest, and nobody
says that two are the same.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final
from zlib import crc32

from .wrappers import attributes, slots_of

MOST_PARTS = 2_000
"""Parts of a dataset that are looked at, some 1 us each; of one that has more there is no digest."""

MOST_DEPTH = 8
PICKED = 8
"""Members of a list, rows of a table and numbers of an array that are looked at, evenly over its length."""

WHOLE: Final = frozenset({"RandomSampler", "SequentialSampler", "WeightedRandomSampler"})
"""Samplers of torch that know no rank. What `SubsetRandomSampler` is given may be a rank's own."""

_PLAIN = (bool, int, float, complex, str, bytes, PurePath, date, timedelta, type(None))
_NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
"""Told by their name alone: code holds no data, or next to none."""

_NO_DATA = frozenset(
    {"_random", "_thread", "cv2", "logging", "random", "re", "sentencepiece", "threading", "tokenizers", "transformers"}
)
_STATE = frozenset({"Generator", "RandomState", "device", "dtype"})
"""Packages, and classes of numpy and torch, of objects that hold no data: random numbers, locks, tokenizers."""

_LIBRARIES = frozenset({"torch", "torchvision", "torchaudio", "torch_geometric", "datasets", "monai"})
"""Packages whose datasets keep what they read in their attributes."""

_ASKS = frozenset({"environ", "get_rank", "get_world_size", "getenv"})
"""Who reads one of these may read other data on another rank. What `__init__` chooses is an attribute then."""

_ODD = (ArithmeticError, AttributeError, LookupError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError)
"""What somebody's arrays, tables and files can raise where they are not as expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A container: what tells it, and the members that are looked at."""

    told: object
    members: tuple[object, ...] = ()


class _ClosedError(Exception):
    """Something cannot be looked into."""


def data_of(loader: Any) -> dict[str, Any]:
    """Return which data a DataLoader goes through, as `LoaderInfo` says it.

    Args:
        loader: Of a map-style dataset; of an iterable one, whose sampler is another, nothing is known.

    Returns:
        Nothing in a process that trains alone, nor where the sampler is none of torch's: both say nothing of ranks.
    """
    sampler = loader.sampler
    if not _are_ranks() or type(sampler).__name__ not in WHOLE or not type(sampler).__module__.startswith("torch."):
        return {}
    if type(loader.batch_sampler).__name__ != "BatchSampler" or _asks_for_its_rank(loader.collate_fn):
        return {}
    try:
        items, drawn = len(loader.dataset), len(sampler)
    except Exception:  # noqa: BLE001 - the dataset's length is somebody else's code, which the sampler asks for as well
        return {}
    return {
        "items": items,
        "items_drawn": drawn,
        "sampler": type(sampler).__name__,
        "data_digest": digest_of(loader.dataset),
        "order_digest": _order(sampler),
    }


def digest_of(dataset: object) -> str:
    """Return 32 bits of what a dataset is made of, as hexadecimal digits; empty where it cannot be looked into.

    Args:
        dataset: Of any class. Its attributes are looked at, and nothing of it is called.
    """
    crc = 0
    try:
        for told in _parts(dataset):
            crc = crc32(repr(told).encode("utf-8", "surrogatepass"), crc)
    except (_ClosedError, *_ODD):
        return ""
    return f"{crc:08x}"


def _are_ranks() -> bool:
    """Whether this process trains together with others."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


def _order(sampler: Any) -> str:
    """Return 32 bits of the state that a sampler draws its next order from; the same orders have the same."""
    if type(sampler).__name__ == "SequentialSampler":
        return "0" * 8
    generator = getattr(sampler, "generator", None)
    state = sys.modules["torch"].get_rng_state() if generator is None else generator.get_state()
    return f"{crc32(state.numpy().tobytes()):08x}"


def _parts(dataset: object) -> Iterator[object]:
    """Yield what tells a dataset, part by part, breadth first; the same for datasets that were made alike."""
    left: deque[tuple[int, object]] = deque([(0, dataset)])
    seen: set[int] = set()
    for _ in range(MOST_PARTS):
        if not left:
            return
        depth, part = left.popleft()
        if isinstance(part, _PLAIN):
            yield type(part).__name__, str(part) if not isinstance(part, bytes) else (len(part), part[:64], part[-64:])
            continue
        if isinstance(part, _NAMED):
            yield getattr(part, "__qualname__", None) or getattr(part, "__name__", "")
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        held = _held(part)
        yield held.told
        if held.members and depth == MOST_DEPTH:
            raise _ClosedError
        left.extend((depth + 1, member) for member in held.members)
    raise _ClosedError


def _held(part: Any) -> _Held:
    """Return what tells a container and its members.

    Raises:
        _ClosedError: It is none that is known.
    """
    name, package = type(part).__name__, type(part).__module__.partition(".")[0]
    if isinstance(part, (list, tuple, deque, range)):
        return _Held(told=(name, len(part)), members=tuple(part[at] for at in _picked(len(part))))
    if isinstance(part, (set, frozenset)):
        return _Held(told=(name, len(part)))  # in an order of their own in each process
    if isinstance(part, dict):
        keys = list(part)
        picked = [keys[at] for at in _picked(len(keys))]
        return _Held(told=(name, len(part)), members=(*picked, *(part[key] for key in picked)))
    if package in _NO_DATA or (package in ("numpy", "torch") and name in _STATE):
        return _Held(told=name)
    for known in (_array, _table, _file):
        if (held := known(part, name, package)) is not None:
            return held
    if isinstance(part, partial):
        return _Held(told=name, members=(part.func, part.args, part.keywords))
    functions = [function for kind in type(part).__mro__ for function in vars(kind).values()]
    if any(map(_asks_for_its_rank, functions)):
        raise _ClosedError
    whole = _attributes(part) | {f"global {name}": one for each in functions for name, one in _globals(each)}
    if not whole:
        raise _ClosedError  # its items are made of what cannot be seen from here
    order = sorted(whole)
    return _Held(told=(name, order), members=tuple(whole[key] for key in order))


def _attributes(part: Any) -> dict[str, object]:
    """Return the attributes of an object by name, without its properties.

    Raises:
        _ClosedError: It has none that Python knows of: what it holds is kept by code of another language.
    """
    slots = slots_of(part)
    if not slots and not hasattr(part, "__dict__"):
        raise _ClosedError
    found: dict[str, object] = {}
    for slot in slots:
        with suppress(AttributeError):  # never set
            found[slot.__name__] = slot.__get__(part)
    return found | {name: value for name, value in attributes(part).items() if isinstance(name, str)}


def _globals(function: object) -> Iterator[tuple[str, object]]:
    """Yield the values of a program's module that a function of a class reads: a rank's number may be among them."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or code.co_name == "__init__":
        return
    known = getattr(function, "__globals__", {})
    if str(known.get("__name__", "")).partition(".")[0] in _LIBRARIES:
        return
    for name in code.co_names:
        if name in known and not isinstance(known[name], _NAMED):
            yield name, known[name]


def _asks_for_its_rank(function: object) -> bool:
    """Whether a function of a class may read other data on another rank."""
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and code.co_name != "__init__" and not _ASKS.isdisjoint(code.co_names)


def _array(part: Any, name: str, package: str) -> _Held | None:
    if package == "numpy" and hasattr(part, "dtype"):
        at = _picked(part.size)
        numbers = tuple(part.flat[i].item() if hasattr(part.flat[i], "item") else part.flat[i] for i in at)
        return _Held(told=(name, part.shape, str(part.dtype)), members=numbers)
    if package == "torch" and hasattr(part, "data_ptr"):
        if part.layout is not sys.modules["torch"].strided or part.device.type != "cpu":
            raise _ClosedError  # to ask a device would be to wait for it
        numbers = tuple(_number(part, at) for at in _picked(part.numel()))
        return _Held(told=(name, tuple(part.shape), str(part.dtype)), members=numbers)
    return None


def _number(tensor: Any, at: int) -> object:
    """Return one number of a tensor, counted row by row."""
    place = []
    for length in reversed(tensor.shape):
        at, rest = divmod(at, length)
        place.append(rest)
    return tensor.detach()[tuple(reversed(place))].item()


def _table(part: Any, name: str, package: str) -> _Held | None:
    """Return what tells a table of pandas, pyarrow or Hugging Face's datasets."""
    if package == "datasets" and isinstance(getattr(part, "_fingerprint", None), str):
        return _Held(told=(name, len(part), part._fingerprint))  # of all that was done to it, shards included
    if package == "pyarrow" and hasattr(part, "num_rows"):
        rows = [part.slice(at, 1).to_pydict() for at in _picked(part.num_rows)]
        return _Held(told=(name, part.num_rows), members=tuple(map(str, rows)))
    if package == "pandas" and hasattr(part, "iloc"):
        rows = [part.iloc[at] for at in _picked(len(part))]
        return _Held(told=(name, part.shape), members=tuple(str(list(getattr(row, "array", [row]))) for row in rows))
    if package == "pandas" and hasattr(part, "array"):  # an index
        return _Held(told=(name, len(part)), members=tuple(str(part[at]) for at in _picked(len(part))))
    return None


def _file(part: Any, name: str, package: str) -> _Held | None:
    """Return what tells an open file of HDF5's, or one of its datasets."""
    if package == "_io" and isinstance(getattr(part, "name", None), str):
        return _Held(told=(name, part.name))
    if package != "h5py" or not hasattr(part, "file"):
        return None
    return _Held(told=(name, str(part.file.filename), str(part.name), getattr(part, "shape", None)))


def _picked(length: int) -> list[int]:
    """Return the places of up to `PICKED` members, the first and the last among them."""
    if length <= PICKED:
        return list(range(length))
    return [at * (length - 1) // (PICKED - 1) for at in range(PICKED)]
