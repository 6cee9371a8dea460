"""How many items a batch holds, from shapes and lengths alone: no value of a tensor is read, no device is asked.

A batch is columns (a tensor or a list for each field, all as long as the batch) or rows (a list of items), at any
depth. Often both readings are possible: a list of 8 images with 3 channels may be 8 rows, or columns of length 3. Every
reading of every part is collected. What holds for all parts together is the size; where several do, the batch size that
the loader was given says which. Without that nothing is said rather than something wrong.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

MOST_DEPTH = 5
MOST_MEMBERS = 8
"""So many members of a list are looked at: the others are taken to be like them."""

MOST_PARTS = 500
"""So many parts of a batch are looked at in all; in what has more nothing is found."""

PATIENCE = 8
"""After so many batches of unknown size in a row no more are looked at until the loader starts again."""

PLAIN: Final = (str, bytes, int, float, complex, type(None))
"""Values of an item, not fields of a batch."""

DRAW_NUMBERS: Final = frozenset(
    {"DistributedSampler", "RandomSampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler"}
)
"""Samplers of torch that draw one index after the other."""

_ODD = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What shapes, keys and attributes of somebody's batch can raise where they are not as expected."""


class _Reading(NamedTuple):
    """Where a size was read, so that it can be read there again."""

    path: tuple[Any, ...] | None
    """Keys from the batch down; None where it cannot be read again so simply, or two readings fell together."""
    by_shape: bool = False
    rows: bool = False
    """Whether it is the length of a list of items."""
    pictures: bool = False
    """Whether these are three tensors or more, of three dimensions or more: fields are seldom so alike."""
    sure: bool = True
    """Whether something can be read in no other way."""
    votes: int = 1
    """Parts that have this size."""


_Sizes = dict[int, _Reading]


class _Tensors(NamedTuple):
    """What tensors have in common that are rows of the same list."""

    type: type
    rank: int
    dtype: object


class _Part(NamedTuple):
    """What is known about a part of a batch."""

    kind: object
    """Equal for parts that may be rows of the same list."""
    sizes: Mapping[int, _Reading] = MappingProxyType({})
    """The possible readings."""
    torn: _Sizes | None = None
    """What its fields say where they contradict each other."""
    plain: bool = False
    """A single value: a number, a text, a tensor without dimensions."""
    listing: bool = False
    """A list of such values. It may as well describe the batch, as an image's height and width do."""
    group: bool = False
    """It consists of fields."""
    item: bool = False
    """These fields are no columns: some are single values, or they contradict each other."""


class BatchSizes:
    """Finds the size of batches that come one after the other. Where the first had it, the next are looked up.

    Args:
        expected: The batch size that the loader was given, None when it is not known.
    """

    __slots__ = ("_by_shape", "_dataset", "_expected", "_misses", "_one", "_path", "_root")

    def __init__(self, expected: int | None = None) -> None:
        self._expected = expected
        self._one = False
        """Whether each of what the loader makes is one item, whatever it looks like."""
        self._dataset: Callable[[], object] = _nothing
        self._root: type | None = None
        self._path: tuple[Any, ...] = ()
        self._by_shape = False
        self._misses = 0

    def expect(self, expected: int | None) -> None:
        """Batches of another loader follow, or of the same one from its beginning."""
        self._expected = expected
        self._one = False
        self._root = None
        self._misses = 0

    def set_loader(self, loader: object) -> None:
        """The same, with the batch size that a loader has."""
        self.expect(given_size(loader))
        self._one = makes_items(loader)
        try:
            self._dataset = weakref.ref(attribute(loader, "dataset"))
        except TypeError:  # none, or a list
            self._dataset = _nothing

    def reads_the_same(self, loader: object) -> bool:
        """Whether another loader reads the very dataset that this one does; a part of one is another."""
        dataset = self._dataset()
        return dataset is not None and attribute(loader, "dataset") is dataset

    def known(self, batch: Any) -> int | None:
        """Look a size up where the first batch had it; None when it is not there: `find` it. Never raises."""
        if type(batch) is not self._root:
            return None
        found: Any = batch
        try:
            for key in self._path:
                found = found[key]
            return int(found.shape[0]) if self._by_shape else len(found)
        except _ODD:
            return None

    def find(self, batch: Any) -> int | None:
        """Return how many items a batch holds; None when that cannot be told."""
        if self._one:
            return 1
        if self._misses >= PATIENCE:
            return None
        size, reading = _decide(batch, self._expected)
        self._root = None
        if reading is not None and reading.path is not None:
            self._root, self._path, self._by_shape = type(batch), reading.path, reading.by_shape
        self._misses = self._misses + 1 if size is None else 0
        return size

    def __call__(self, batch: Any) -> int | None:
        """Return how many items a batch holds; None when that cannot be told."""
        size = self.known(batch)
        return self.find(batch) if size is None else size


def batch_size(batch: object, expected: int | None = None) -> int | None:
    """Return how many items a batch holds, from shapes and lengths alone; None when they do not say.

    Args:
        batch: Whatever a loader yields.
        expected: The batch size that the loader was given, which decides between several readings.
    """
    return _decide(batch, expected)[0]


def _nothing() -> None:
    return None


def attribute(owner: object, name: str, default: Any = None) -> Any:
    """Return an attribute of somebody's loader; the default where it has none, and where its property raises."""
    try:
        return getattr(owner, name, default)
    except Exception:  # noqa: BLE001 - a property is somebody else's code, and only worth something if there is a value
        return default


def given_size(loader: object) -> int | None:
    """Return the batch size that a loader was given, or its batch sampler in either place; None when it has none."""
    for owner in (loader, attribute(loader, "batch_sampler"), attribute(loader, "sampler")):
        size = attribute(owner, "batch_size")
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return None


def makes_items(loader: object) -> bool:
    """Whether a DataLoader makes single items: of a map-style dataset, one for each number that its sampler draws.

    With ``batch_size=None`` a sampler of one's own may draw the indices of a batch, and a stream may hold batches.
    """
    kinds = [kind.__name__ for kind in type(loader).__mro__]
    dataset = [kind.__name__ for kind in type(attribute(loader, "dataset")).__mro__]
    if "DataLoader" not in kinds or "IterableDataset" in dataset or "IterDataPipe" in dataset:
        return False
    apart = attribute(loader, "batch_size", 0) is None and attribute(loader, "batch_sampler", 0) is None
    return apart and type(attribute(loader, "sampler")).__name__ in DRAW_NUMBERS


LENGTHS_OF = frozenset(
    ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "torch", "torchdata", "transformers")
)
"""Packages whose loaders and samplers may be asked for their length."""


class Fixed(NamedTuple):
    """What a loader says of its batches."""

    size: int
    """Of all but the last."""
    batches: int


def fixed_size(loader: object) -> Fixed | None:
    """Return the size that a loader gives all its batches but the last; None when it does not say, or cannot know.

    Batch samplers of one's own may make batches of many sizes, and so do the workers of an iterable dataset at their
    ends: such loaders are not believed. Nor are those asked whose length is code of the program's, in a loader or a
    sampler of its own: it may take long, or draw random numbers.
    """
    size = attribute(loader, "batch_size")
    kinds = type(attribute(loader, "dataset")).__mro__
    if type(size) is not int or size < 1 or any(kind.__name__ == "IterableDataset" for kind in kinds):
        return None
    if not all(map(_has_known_length, (loader, attribute(loader, "sampler"), attribute(loader, "batch_sampler")))):
        return None
    try:
        return Fixed(size, len(loader))  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a length is somebody else's code, and only worth something if there is one
        return None


def _has_known_length(one: object) -> bool:
    """Whether the length of a loader or a sampler is worked out by a library."""
    holder = next((kind for kind in type(one).__mro__ if "__len__" in vars(kind)), None)
    return one is None or (holder is not None and holder.__module__.partition(".")[0] in LENGTHS_OF)


def _decide(batch: object, expected: int | None) -> tuple[int | None, _Reading | None]:
    """Return the size, and where to read it in the next batches if it is sure to be there."""
    try:
        part = _look(batch, (), 0, [MOST_PARTS])
    except _ODD:
        return None, None
    if part is None or part.plain:
        return None, None
    sizes = {size: reading for size, reading in part.sizes.items() if _is_likely(size, reading, part, batch, expected)}
    if len(sizes) > 1 and expected is None:
        sizes = {
            size: reading for size, reading in sizes.items() if reading.path or not reading.rows or reading.pictures
        }
        if len(sizes) > 1:
            sizes = {size: reading for size, reading in sizes.items() if size > 1 or not reading.rows}
    if len(sizes) == 1:
        return next(iter(sizes.items()))
    if expected in sizes:
        return expected, sizes[expected]
    if not sizes and part.torn and expected in part.torn:
        # Some fields are not of the batch: all its tokens in one row, say.
        found = part.torn[expected]
        return expected, found if found.votes > 1 else None
    return None, None


def _is_likely(size: int, reading: _Reading, part: _Part, batch: object, expected: int | None) -> bool:
    """Whether different tensors are rows of a list and not fields that have little in common."""
    if not reading.rows or size == expected:
        return True
    if reading.path == () and part.torn is not None:
        # What a collate function returns as a tuple are fields, and a pair is rather (source, target) than two items.
        return expected is None and type(batch) is list and size > 2 and not part.group
    return reading.sure or size > 2


def _look(node: Any, path: tuple[Any, ...] | None, depth: int, left: list[int]) -> _Part | None:
    """Describe a part of a batch; None when there is too much of it."""
    left[0] -= 1
    if depth > MOST_DEPTH or left[0] < 0:
        return None
    if isinstance(node, PLAIN):
        return _Part(type(node), plain=True)
    if isinstance(node, Mapping) and not isinstance(getattr(node, "shape", None), tuple):
        again = path if not hasattr(type(node), "__missing__") else None  # a look-up would add what is missing
        return _fields(type(node), _walk(node.items(), again, depth, left))
    if isinstance(node, (list, tuple)):
        reached = getattr(node, "batch_sizes", None)  # of a PackedSequence: how many sequences reach each length
        if reached is not None:
            return _Part(type(node), {int(reached[0]): _Reading(None)})
        parts = _walk(enumerate(node[:MOST_MEMBERS]), path, depth, left)
        return _fields(type(node), parts) if hasattr(node, "_fields") else _list(node, parts, path)
    return _object(node, path, depth, left)


def _object(node: Any, path: tuple[Any, ...] | None, depth: int, left: list[int]) -> _Part | None:
    """A tensor, an array, something that says how much it holds, or something with tensors in it."""
    if getattr(node, "is_nested", False) is True:  # some have no shape
        return _Part(type(node), {int(node.size(0)): _Reading(None)})
    shape: Any = getattr(node, "shape", None)
    if hasattr(shape, "__len__"):
        kind = _Tensors(type(node), len(shape), getattr(node, "dtype", None))
        return _Part(kind, {int(shape[0]): _Reading(path, by_shape=True)}) if len(shape) else _Part(kind, plain=True)
    for name in ("num_graphs", "batch_size"):
        size = getattr(node, name, None)
        if isinstance(size, int):
            return _Part(type(node), {size: _Reading(None)})
    fields = [getattr(node, name, None) for name in getattr(node, "__dict__", getattr(node, "__slots__", ()))]
    tensors = [field for field in fields if getattr(field, "shape", ())]
    return _fields(type(node), _walk(enumerate(tensors), None, depth, left)) if tensors else _Part(type(node))


def _walk(
    members: Iterable[tuple[Any, Any]], path: tuple[Any, ...] | None, depth: int, left: list[int]
) -> list[_Part | None]:
    return [_look(member, None if path is None else (*path, key), depth + 1, left) for key, member in members]


def _fields(kind: object, found: Sequence[_Part | None]) -> _Part | None:
    """A group of fields, each of which is as long as the batch."""
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        return None
    common, torn = _common(parts)
    return _Part(kind, common, torn, group=True, item=torn is not None or any(part.plain for part in parts))


def _list(node: Sequence[Any], found: Sequence[_Part | None], path: tuple[Any, ...] | None) -> _Part | None:
    """A list of items, or a group of fields."""
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        return None
    kind = type(node) if isinstance(node, list) else (type(node), len(node))
    if not parts:
        return _Part(type(node))
    first = parts[0].kind
    pictures = len(node) > 2 and isinstance(first, _Tensors) and first.rank > 2
    rows = {len(node): _Reading(path, rows=True, pictures=pictures)}
    if all(part.plain for part in parts):
        return _Part(type(node), rows, listing=True)
    alike = len({part.kind for part in parts}) == 1
    items = [part.item for part in parts]
    nothing = all(not part.sizes and part.torn is None for part in parts)  # objects of some kind
    texts = all(part.listing for part in parts) and len({*map(len, node)}) > 1
    if alike and (nothing or texts or all(items) or (any(items) and len(parts) > 2)):
        return _Part(kind, rows)
    common, torn = _common(parts)
    group = not alike or all(part.group for part in parts)
    item = torn is not None or any(part.plain for part in parts)
    if not alike:
        return _Part(kind, common, torn, group=group, item=item)
    both = {size: reading._replace(path=None) for size, reading in common.items() if size in rows}
    return _Part(kind, {**common, **rows, **both}, torn, group=group, item=item and not alike)


def _common(parts: Sequence[_Part]) -> tuple[_Sizes, _Sizes | None]:
    """Return what all parts that say anything agree on; where they do not, nothing and what each of them says."""
    telling = [part for part in parts if part.sizes]
    broken = any(part.torn is not None and not part.sizes for part in parts)
    for chosen in (telling, [part for part in telling if not part.listing]):
        sizes = set.intersection(*(set(part.sizes) for part in chosen)) if chosen and not broken else set()
        if sizes:
            return {size: _surest(size, chosen) for size in sizes}, None
    if not telling and not broken:
        return {}, None
    return {}, {size: _surest(size, telling) for part in telling for size in part.sizes}


def _surest(size: int, parts: Sequence[_Part]) -> _Reading:
    """Where to read a size: rather in a part that can be read in no other way."""
    having = sorted((p for p in parts if size in p.sizes), key=lambda p: (len(p.sizes), p.sizes[size].path is None))
    reading = having[0].sizes[size]
    return reading._replace(votes=len(having), sure=reading.sure and len(having[0].sizes) == 1)
