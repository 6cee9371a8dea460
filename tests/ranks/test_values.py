"""Values in a store of torch's: by `compare_set` only where that holds the interpreter's lock."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.ranks.values import CountedValues, Values, calling, values_of


class Store:
    """What a store of torch's does, without `compare_set`, and without waiting."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value.encode()

    def get(self, key: str) -> bytes:
        assert key in self.kept, f"{key} is not there: torch's would wait for it"
        return self.kept[key]

    def add(self, key: str, more: int) -> int:
        count = int(self.kept.get(key, b"0")) + more
        self.kept[key] = str(count).encode()
        return count

    def delete_key(self, key: str) -> bool:
        return self.kept.pop(key, None) is not None


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("2.2.0+cu121", CountedValues),
        ("2.4.1", CountedValues),
        ("2.5.0a0+git", Values),
        ("2.13.0+cpu", Values),
        ("unknown", CountedValues),
    ],
)
def test_compare_set_is_called_only_where_it_holds_the_lock(
    version: str, kind: type[Values], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(__version__=version)
    )  # some Pythons are tested without it
    assert type(values_of(Store())) is kind


def test_without_it_a_counter_tells_what_is_there() -> None:
    store = Store()
    values = CountedValues(store)
    assert values.read("a") is None
    values.write("a", "one")
    values.write("a", "two")
    assert (values.is_there("a"), values.read("a")) == (True, "two")
    values.replace("a", "one", "three")
    assert values.read("a") == "two"
    values.replace("a", "two", "three")
    assert values.read("a") == "three"
    values.remove("a")
    assert (values.is_there("a"), values.read("a")) == (False, None)
    assert "a" not in store.kept
    assert [values.count("c", 2), values.count("c", 0)] == [2, 2]


def test_what_torch_raises_is_a_lost_connection() -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("Connection reset by peer")

    with pytest.raises(ConnectionError, match="reset by peer"):
        calling(fails, 1)
