"""A patch stands on whatever an instance is, and nothing tells afterwards that it stood there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from stallmeter.engine.patch import Patches


class Plain:
    def save(self) -> str:
        return "saved"


class Slotted:
    """No dictionary: what is set stands in a slot."""

    __slots__ = ("save",)

    def __init__(self) -> None:
        self.save = lambda: "saved"


class Property:
    """The class decides where the attribute is kept."""

    def __init__(self) -> None:
        self._save = lambda: "saved"

    @property
    def save(self) -> Any:
        return self._save

    @save.setter
    def save(self, value: Any) -> None:
        self._save = value


class Proxy:
    """Has no attribute of its own and hands on whatever it is asked."""

    def __init__(self) -> None:
        object.__setattr__(self, "of", Plain())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.of, name)


class Wrapper:
    """Stands for another object in every way: its attributes are the other's."""

    def __init__(self) -> None:
        object.__setattr__(self, "of", Plain())

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "of"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "of"), name, value)


class Frozen(Plain):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot set {name}")


def mock() -> Mock:
    made = Mock()
    made.save.return_value = "saved"
    return made


def spec() -> Any:
    made = create_autospec(Plain, instance=True)
    made.save.return_value = "saved"
    return made


def given() -> Plain:
    made = Plain()
    made.save = lambda: "saved"  # type: ignore[method-assign]
    return made


OWNERS = [Plain, given, Slotted, Property, Proxy, Wrapper, Frozen, mock, spec]


@pytest.mark.parametrize("make", OWNERS)
def test_a_patch_leaves_no_trace(make: Any) -> None:
    owner = make()
    original = owner.save
    attributes = set(getattr(owner, "__dict__", ()))
    patches = Patches()
    patches.set(owner, "save", lambda: f"timed and {original()}")
    assert owner.save() == "timed and saved"
    patches.undo()
    assert owner.save() == "saved"
    assert owner.save == original
    assert set(getattr(owner, "__dict__", ())) == attributes


@pytest.mark.parametrize("make", OWNERS)
def test_what_was_put_over_ours_stays(make: Any) -> None:
    owner = make()
    patches = Patches()
    patches.set(owner, "save", lambda: "timed")
    others = Patches()
    others.set(owner, "save", lambda: "theirs")
    patches.undo()
    assert owner.save() == "theirs"


def test_what_takes_no_attribute_says_so() -> None:
    owner = type("Sealed", (), {"__slots__": (), "save": lambda self: "saved"})()
    with pytest.raises(AttributeError):
        Patches().set(owner, "save", lambda: "timed")
    with pytest.raises(AttributeError):
        Patches().set(Plain(), "load", lambda: "timed")


def test_around_counts_the_calling_thread_alone() -> None:
    owner, patches = Plain(), Patches()
    spans: list[str] = []

    class Reusable:
        def __enter__(self) -> None:
            spans.append("open")

        def __exit__(self, *exc: object) -> None:
            spans.append("closed")

    patches.around(owner, "save", Reusable())
    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(owner.save).result() == "saved"
    assert spans == []
    assert owner.save() == "saved"
    assert spans == ["open", "closed"]
    patches.undo()
    assert "save" not in vars(owner)
