"""How full a batch of sequences is: padding that the longest of them needs, and sequences of like length would not.

An attention mask says so. Without one it is guessed from what rows of unequal length end in, or begin with: ids in runs
of one same value, signals and features in exact zeros. Pictures, sparse columns and masks have such runs, too. What
tells sequences from them: the value stands at one end of the rows and seldom within them, the other ends hold something
else, the runs are of many lengths, and of a signal one row has none. Whoever is not sure of that says nothing.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any, NamedTuple

from .numbers import ODD, numbers_of, tensors_in
from .padding import mask_of, tokens_in

MOST_TENSORS = 2
"""Tensors of one size that are looked at, the largest of a batch: what else is padded takes little of a step."""

MOST_LISTED = 64
"""Tensors of a batch among which these are looked for, the first ones."""

LEAST_ROWS = 4
"""In a batch of one row nothing differs, and two or three may end alike by chance."""

LEAST_POSITIONS = 8
"""Fewer columns are rather a table's."""

MOST_ROWS = 256
MOST_FEATURES = 2
"""Rows, and numbers of a position, that are looked at, spread over all."""

MOST_NUMBERS = 60_000
"""Numbers that are looked at in all; where there are more, at positions in equal distances. That takes one to
three milliseconds where there is padding, and up to a quarter of one where there is none."""

LEAST_ENDING = 0.3
"""Part of the rows that must be padded at all: with fewer there is not much padding."""

MOST_OTHER_ENDS = 0.1
"""Part of the rows that may have the value at their other end as well: pictures have a border all around."""

MOST_WITHIN = 0.02
"""Part of the filled positions that may have the value: an end mark that is the padding, too, comes once in a row."""

NEARLY_FULL = 0.95
"""Part of the positions that the longest row of a signal fills: a batch is padded to its longest, or cut off there. Ids
are often padded to what the model can take, and their padding is the more certain one."""

LEAST_LENGTHS = 3
"""Different lengths of rows."""

LEAST_VALUES = 4
"""Different numbers within the rows: masks have one or two."""

MOST_ZEROS = 0.5
"""Part of the numbers within filled positions that may be zero: of a picture's or a one-hot code's, most are."""

LOOKED_AT = 2000
"""Numbers within the rows that are counted."""


class Filling(NamedTuple):
    """What the sequences of a batch fill."""

    positions: int
    """Of a row, to which all are padded."""
    used: int | None
    """Of these, up to the end of the longest sequence; None of a signal, where a shorter one would be a guess."""
    share: float
    """Part (0 to 1) of the positions up to the longest sequence that hold something, of all rows."""
    by: str
    """``mask``, ``ids`` or ``signal``; as of `BatchContent`."""


def filling_of(batch: object) -> Filling | None:
    """Return how full the sequences of a batch make it; None where they cannot be told from other data.

    Args:
        batch: Whatever a loader yields. With an attention mask that alone counts. On an accelerator nothing is read,
            which would wait for the device.
    """
    mask = mask_of(batch)
    if mask is not None:
        return _of_mask(mask)
    tensors = [(_size(tensor), tensor) for tensor in islice(tensors_in(batch), MOST_LISTED)]
    largest = max((size for size, _ in tensors), default=0)
    for tensor in [tensor for size, tensor in tensors if size == largest and size][:MOST_TENSORS]:
        try:
            found = _of_numbers(numbers_of(tensor))
        except ODD:
            found = None
        if found is not None:
            return found
    return None


def _of_mask(mask: Any) -> Filling | None:
    tokens = tokens_in(mask)
    used = 0 if tokens is None else int(tokens.any(axis=0).sum())
    if not used or len(tokens) < 2:
        return None
    return Filling(int(tokens.shape[1]), used, float(tokens.sum()) / (len(tokens) * used), "mask")


def _size(tensor: Any) -> int:
    shape: Any = getattr(tensor, "shape", ())
    size = 1
    for length in shape if isinstance(shape, tuple) else ():
        size *= int(length)
    return size if len(shape) else 0


def _of_numbers(numbers: Any) -> Filling | None:
    """Look for padding in rows of ids, of a signal or of features, however its dimensions are ordered."""
    kind = getattr(getattr(numbers, "dtype", None), "kind", "")
    ids = kind in ("i", "u")
    if numbers is None or not (ids or kind == "f"):
        return None
    if numbers.ndim == 2:
        # Rows by positions; of ids also positions by rows, as `pad_sequence` makes them where it is told nothing.
        found = [_of_rows(one[:, :, None], ids=ids) for one in ((numbers, numbers.T) if ids else (numbers,))]
        return next((one for one in found if one is not None), None)
    if numbers.ndim != 3 or ids:
        return None
    # Rows, positions, features; channels first; positions first.
    found = [_of_rows(numbers.transpose(order), ids=False) for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2))]
    sure = [one for one in found if one is not None]
    # Padded in two directions are pictures.
    return sure[0] if len(sure) == 1 else None


def _of_rows(whole: Any, *, ids: bool) -> Filling | None:
    """Look for padding at the ends, or at the beginnings, of rows by positions by features."""
    rows, positions, features = whole.shape
    if rows < LEAST_ROWS or positions < LEAST_POSITIONS or not features:
        return None
    few = whole[:: -(-rows // MOST_ROWS), :, :: -(-features // MOST_FEATURES)]
    every = -(-few.size // MOST_NUMBERS)
    for turned in (few[:, ::-1], few):  # padded at the end, at the beginning
        value = _most_common(turned[:, 0, 0]) if ids else 0.0
        ending = _are(turned[:, 0], value).mean()
        if ending >= LEAST_ENDING and _are(turned[:, -1], value).mean() <= MOST_OTHER_ENDS:
            found = _longest_and_share(turned[:, ::every], value)
            if found is None:
                continue
            used = min(positions, found[0] * every)
            if ids:
                return Filling(positions, used, found[1], "ids")
            if used >= NEARLY_FULL * positions:
                return Filling(positions, None, found[1], "signal")
    return None


def _most_common(ids: Any) -> Any:
    return Counter(ids.tolist()).most_common(1)[0][0]


def _are(numbers: Any, value: Any) -> Any:
    """Where all features of a position have a value."""
    return (numbers == value).all(axis=-1)


def _longest_and_share(turned: Any, value: Any) -> tuple[int, float] | None:
    """Return how long and how full rows are that begin with what they are padded with; None where it is no padding."""
    padding = _are(turned, value)
    positions = padding.shape[1]
    # In a row of nothing else the first that differs is looked for in vain, which reads as 0.
    lengths = positions - (~padding).argmax(axis=1)
    lengths[padding.all(axis=1)] = 0
    longest, filled = int(lengths.max()), int(lengths.sum())
    if len(set(lengths.tolist())) < LEAST_LENGTHS:
        return None
    runs = len(lengths) * positions - filled
    if int(padding.sum()) - runs > MOST_WITHIN * filled:
        return None
    within = turned[~padding].reshape(-1)
    some = within[:: -(-within.size // LOOKED_AT)]
    if len(set(some.tolist())) < LEAST_VALUES or (some == 0).mean() > MOST_ZEROS:
        return None
    return longest, filled / (len(lengths) * longest)
