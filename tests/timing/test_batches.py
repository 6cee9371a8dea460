"""The size of a batch, whatever shape a collate function gives it: a right number or none."""

from __future__ import annotations

import re
from collections import UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset, TensorDataset, default_collate

from stallmeter.timing.batches import PATIENCE, BatchSizes, batch_size, fixed_size, given_size, makes_items

Pair = namedtuple("Pair", "x y")


class Graphs:
    num_graphs = 5


class Picture:
    """A PIL image: a size that is none of the batch's, and no tensor."""

    def __init__(self) -> None:
        self._size = (640, 480)
        self.size = (640, 480)


class Encoding(UserDict[str, Any]):
    """As a tokenizer of Hugging Face returns it."""


@dataclass
class Padded:
    """As detection models pad their images."""

    tensors: torch.Tensor
    mask: torch.Tensor


class Shaped(UserDict[str, Any]):
    """As a TensorDict: a mapping with a shape."""

    shape = torch.Size([6])


def image(side: int = 8, channels: int = 3) -> torch.Tensor:
    return torch.zeros(channels, side, side)


def target(objects: int) -> dict[str, torch.Tensor]:
    return {"boxes": torch.zeros(objects, 4), "labels": torch.zeros(objects, dtype=torch.int64)}


def shown(value: object) -> str:
    """Return its beginning without addresses: they differ between the processes that share the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:40].replace("\n", " ")


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.ones(7, 3), 7),
        (torch.tensor(3.0), None),
        (np.ones((7, 2)), 7),
        ([torch.ones(7, 3), torch.ones(7)], 7),
        ([torch.ones(7, 3), torch.ones(7, 1)], 7),
        ([torch.ones(7, 3)], 7),
        ({"text": ["a", "b"], "x": torch.ones(2)}, 2),
        ({"loss": torch.tensor(1.0), "x": torch.ones(2)}, 2),
        ({"x": torch.ones(4, 3), "height_width": (640, 480)}, 4),
        (([torch.ones(4)], {}), 4),
        (Pair(torch.ones(6, 2), torch.ones(6)), 6),
        (Shaped(x=torch.ones(6, 2)), 6),
        ([1, 2, 3], 3),
        (["a", "b"], 2),
        ([torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)], 3),
        ((), None),
        ({}, None),
        ("text", None),
        (None, None),
        (Graphs(), 5),
        (SimpleNamespace(batch_size=9), 9),
        ([[[[[[[1]]]]]]], None),
        ([Picture() for _ in range(5)], 5),
        ((tuple(Picture() for _ in range(5)), torch.ones(5)), 5),
        ([object(), object(), object()], 3),
        (Padded(torch.ones(4, 3, 8, 8), torch.ones(4, 8, 8)), 4),
        ((Padded(torch.ones(4, 3, 8, 8), torch.ones(4, 8, 8)), [target(1), target(2), target(1), target(3)]), 4),
        (Encoding(input_ids=[[1, 2], [3, 4, 5], [6]], length=[2, 3, 1]), 3),
        (Encoding(input_ids=torch.ones(3, 9), attention_mask=torch.ones(3, 9)), 3),
        (pack_sequence([torch.ones(4), torch.ones(3), torch.ones(1)]), 3),
        (torch.nested.nested_tensor([torch.ones(4), torch.ones(3)]), 2),
        ([[1, 2, 3], [4, 5]], 2),
        # of a detection data set
        (([image()] * 5, [target(n) for n in (1, 2, 3, 4, 5)]), 5),
        (([image(7), image(8), image(9), image(9)], [target(1)] * 4), 4),
        (([image()] * 5, [target(1)] * 5), 5),
        (([image()] * 5, [1, 0, 1, 0, 1]), 5),
        (([image()] * 5, [torch.zeros(8, 8)] * 5), 5),
        (tuple(zip(*[(image(), target(n)) for n in (2, 2, 7)], strict=True)), 3),
        ({"pixels": [image(7), image(9)], "targets": [target(3), target(4)]}, 2),
        # handed on as they are
        ([{"image": image(), "height": 480, "width": 640}] * 6, 6),
        ([(image(), 1)] * 6, 6),
        ([(image(), torch.zeros(8, 8))] * 6, 6),
        ([torch.zeros(7, 2), torch.zeros(9, 2), torch.zeros(4, 2)], 3),
        # fields that are not as long as the batch: no number rather than a wrong one
        ([torch.ones(7, 3), torch.ones(2)], None),
        ((torch.ones(7, 3), torch.ones(2, 3)), None),
        ([torch.ones(7, 3), torch.ones(2, 3)], None),
        (([image()] * 5, [image()] * 5), None),
        ([image(7), image(8), image(9), image(9)], None),
        ([image()] * 5, None),
        # of several loaders
        ({"a": [torch.ones(4, 3), torch.ones(4, 1)], "b": [torch.ones(8, 3), torch.ones(8, 1)]}, None),
        ([[torch.ones(4, 3), torch.ones(4, 1)], [torch.ones(8, 3), torch.ones(8, 1)]], None),
    ],
    ids=shown,
)
def test_batch_size(batch: object, size: int | None) -> None:
    assert batch_size(batch) == size
    sizes = BatchSizes()
    assert [sizes(batch), sizes(batch)] == [size, size]


@pytest.mark.parametrize(
    ("batch", "expected", "size"),
    [
        ([image()] * 8, 8, 8),
        ([torch.zeros(64, 3, 8, 8)] * 2, 64, 64),
        ([torch.zeros(64, 3, 8, 8)] * 2, 32, None),
        (([image()] * 5, [image()] * 5), 5, 5),
        ((torch.zeros(4), torch.zeros(90), torch.zeros(4)), 4, 4),
        ((torch.zeros(30, 4), torch.zeros(20, 4)), 32, None),
        ([torch.zeros(128, 3), torch.zeros(128)], 64, 128),
        ([torch.zeros(7, 3), torch.zeros(9, 3)], 2, 2),
        ([[torch.ones(4, 3), torch.ones(4, 1)], [torch.ones(8, 3), torch.ones(8, 1)]], None, None),
    ],
    ids=shown,
)
def test_the_loaders_batch_size_decides(batch: object, expected: int | None, size: int | None) -> None:
    assert batch_size(batch, expected) == size


@pytest.mark.parametrize(
    ("full", "last", "expected"),
    [
        ([image()] * 8, [image()] * 2, 8),
        ([torch.zeros(8, 3, 4, 4)] * 2, [torch.zeros(3, 3, 4, 4)] * 2, 8),
        ((torch.zeros(8), torch.zeros(90), torch.zeros(8)), (torch.zeros(2), torch.zeros(7), torch.zeros(2)), 8),
        (([image()] * 8, [target(1)] * 8), ([image()] * 2, [target(2)] * 2), None),
    ],
    ids=["list of images", "two views", "bag of words", "detection"],
)
def test_the_last_batch_is_read_as_the_first(full: Any, last: Any, expected: int | None) -> None:
    """Alone, a list of two images says no more than two views do."""
    sizes = BatchSizes(expected)
    assert sizes(full) == 8
    assert sizes(last) == len(last[0] if isinstance(last[0], (list, torch.Tensor)) and expected is None else last) or 3
    assert sizes.known(last) in (2, 3)


def test_sizes_that_fell_together_are_looked_for_again() -> None:
    """Three images with three channels: which of the two it was shows with the next batch only."""
    sizes = BatchSizes(3)
    assert sizes([image()] * 3) == 3
    assert sizes.known([image()] * 2) is None


def test_batches_that_change_their_shape() -> None:
    sizes = BatchSizes()
    assert sizes([torch.ones(4, 2), torch.ones(4)]) == 4
    assert sizes({"x": torch.ones(5)}) == 5
    assert sizes([]) is None
    assert sizes([[1, 2, 3], ["a", "b", "c"]]) == 3


def test_nothing_is_added_to_a_batch() -> None:
    sizes, batch = BatchSizes(), defaultdict(list, x=[1, 2])
    assert sizes(batch) == 2
    assert sizes(defaultdict(list, y=[1, 2, 3])) == 3
    assert dict(batch) == {"x": [1, 2]}


class Unreadable:
    @property
    def shape(self) -> Any:
        raise RuntimeError("not computed yet")


def test_a_batch_that_cannot_be_read_has_no_size() -> None:
    assert batch_size(Unreadable()) is None
    assert batch_size([torch.ones(3), Unreadable()]) is None


def test_what_has_no_size_is_not_looked_at_for_ever() -> None:
    class Counted(dict[str, Any]):
        looked = 0

        def items(self) -> Any:
            Counted.looked += 1
            return super().items()

    sizes, batch = BatchSizes(), Counted(x=torch.ones(3), y=torch.ones(4))
    for _ in range(100):
        assert sizes(batch) is None
    assert Counted.looked == PATIENCE
    sizes.expect(None)
    sizes(batch)
    assert Counted.looked == PATIENCE + 1


@pytest.mark.parametrize("sampler", [False, True])
def test_what_the_loader_was_given(sampler: bool) -> None:
    plain = DataLoader(list(range(10)), batch_size=4)
    assert given_size(DataLoader(list(range(10)), batch_sampler=plain.batch_sampler) if sampler else plain) == 4
    assert given_size(DataLoader(list(range(10)), batch_size=None)) is None
    assert given_size([1, 2]) is None


_SCALAR = st.sampled_from([1.0, 2, "text", torch.tensor(3), np.float32(2)])
_TENSOR = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(lambda shape: torch.zeros(*shape))
_ITEM = st.recursive(
    _SCALAR | _TENSOR,
    lambda inner: st.tuples(inner, inner) | st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    max_leaves=5,
)


@given(_ITEM, st.integers(2, 12), st.booleans())
def test_what_torch_collates(item: Any, count: int, known: bool) -> None:
    """Any item, collated by torch: its size or, without the loader's, none; never another number."""
    found = batch_size(default_collate([item] * count), count if known else None)
    assert found in ((count,) if known else (count, None))


def test_packed_sequences_are_what_torch_says() -> None:
    assert isinstance(pack_sequence([torch.ones(2)]), PackedSequence)


class _Pictures(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 8, 8), index


def test_items_that_are_not_put_together_are_one_each_whatever_they_look_like():
    sizes = BatchSizes()
    loader = DataLoader(_Pictures(), batch_size=None, shuffle=True)
    sizes.set_loader(loader)
    assert [sizes(item) for item in loader] == [1] * 6


def test_a_sampler_that_draws_batches_is_believed_by_what_comes():
    """torch's own way to have a dataset read a whole batch at once."""
    drawn = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(6)), 3, drop_last=False)
    loader = DataLoader([torch.zeros(3, 2)], batch_size=None, sampler=drawn)
    sizes = BatchSizes()
    sizes.set_loader(loader)
    assert sizes(torch.zeros(3, 2)) == 3


class Odd:
    """A loader whose properties raise what they like."""

    @property
    def batch_size(self) -> int:
        raise RuntimeError("not before setup()")

    dataset = batch_sampler = batch_size


def test_a_property_that_raises_is_not_there() -> None:
    assert fixed_size(Odd()) is None
    assert given_size(Odd()) is None
    assert not makes_items(Odd())


class Drawn(torch.utils.data.RandomSampler):
    """A sampler whose length is code of the program's."""

    def __len__(self) -> int:
        raise AssertionError("asked")


def test_a_length_that_is_the_programs_own_code_is_not_asked_for() -> None:
    items = [torch.zeros(2)] * 6
    assert fixed_size(DataLoader(items, batch_size=2)) == (2, 3)

    class Long(DataLoader[torch.Tensor]):
        def __len__(self) -> int:
            raise AssertionError("asked")

    assert fixed_size(Long(items, batch_size=2)) is None
    assert fixed_size(DataLoader(items, batch_size=2, sampler=Drawn(items))) is None


def test_a_loader_of_the_same_dataset_is_known() -> None:
    """A part of it, or one that holds as much, is another."""
    trained, other = TensorDataset(torch.ones(8, 2)), TensorDataset(torch.ones(8, 2))
    sizes = BatchSizes()
    assert not sizes.reads_the_same(DataLoader(trained))
    sizes.set_loader(DataLoader(trained, batch_size=4, shuffle=True))
    assert sizes.reads_the_same(DataLoader(trained, batch_size=2))
    for loader in (DataLoader(other), DataLoader(Subset(trained, [0])), [1, 2], None):
        assert not sizes.reads_the_same(loader)
    sizes.set_loader(DataLoader([1, 2]))  # a list cannot be told again once it is gone
    assert not sizes.reads_the_same(DataLoader([1, 2]))


def test_a_sampler_of_batches_in_the_place_of_items() -> None:
    items = TensorDataset(torch.ones(8, 2))
    sampler = BatchSampler(SequentialSampler(items), 4, drop_last=False)
    assert given_size(DataLoader(items, sampler=sampler, batch_size=None)) == 4
