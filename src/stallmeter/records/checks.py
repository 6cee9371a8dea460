"""Whether what a source or a rule returned is what its type says.

Checked where it comes in, inside the guard: there it is known whose it is. Further on a wrong value would break the
window, the reports or the recording, and somebody else would be blamed.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from itertools import islice
from typing import Any, Union, get_args, get_origin, get_type_hints

from .. import records
from .diagnosis import Diagnosis

MOST_SAMPLES = 100_000
"""Most samples that a source may return at once."""

MOST_ITEMS = 1000
"""Most entries of a tuple or a mapping."""

MOST_CHARACTERS = 10_000
"""Longest text; the longest of our own are a few hundred."""

LARGEST_INT = 2**63

_SAMPLES = frozenset(get_args(records.Sample))
_PLANS: dict[type, list[tuple[str, frozenset[type], Any]]] = {}
_SCALARS: dict[type, tuple[type, ...]] = {float: (float, int), int: (int,), str: (str,), bool: (bool,)}


def sound_samples(found: object) -> tuple[Any, ...]:
    """Return what a source's ``sample`` returned; nothing for None.

    Raises:
        TypeError: It is no collection of samples, or a field of one has a wrong type.
        ValueError: A number is not finite, or something is far too large.
    """
    if found is None:
        return ()
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        raise TypeError(f"sample() returned {_brief(found)}; it must return a sequence of samples")
    samples = tuple(islice(found, MOST_SAMPLES + 1))
    if len(samples) > MOST_SAMPLES:
        raise ValueError(f"sample() returned more than {MOST_SAMPLES} samples at once")
    for sample in samples:
        if type(sample) not in _SAMPLES:
            raise TypeError(f"sample() returned {_brief(sample)} among its samples; see stallmeter.records.Sample")
        _check_fields(sample)
    return samples


def sound_diagnosis(found: object) -> Diagnosis | None:
    """Return what a rule's ``check`` returned.

    Raises:
        TypeError: It is neither a Diagnosis nor None, or a field has a wrong type.
        ValueError: A number is out of its range, or something is far too large.
    """
    if found is None:
        return None
    if type(found) is not Diagnosis:
        raise TypeError(f"check() returned {_brief(found)}; it must return a Diagnosis or None")
    _check_fields(found)
    if found.time_lost_s < 0 or found.share_pct < 0:
        raise ValueError(f"a loss below 0 was diagnosed: {found.time_lost_s} s, {found.share_pct} %")
    if not 0 <= found.confidence <= 1:
        raise ValueError(f"confidence is {found.confidence}; give 0 to 1")
    return found


def _check_fields(record: Any) -> None:
    for name, usual, hint in _plan(type(record)):
        value = getattr(record, name)
        if type(value) in usual and _is_bounded(value):
            continue
        _check(value, hint, f"{type(record).__name__}.{name}")


def _plan(cls: type) -> list[tuple[str, frozenset[type], Any]]:
    """Return a record's fields with the types that need no closer look, and their annotations."""
    if cls in _PLANS:
        return _PLANS[cls]
    plan = []
    for name, hint in get_type_hints(cls).items():
        usual = {kind for arm in _arms(hint) for kind in (arm, *_SCALARS.get(arm, ())) if _is_plain(arm)}
        plan.append((name, frozenset(usual), hint))
    _PLANS[cls] = plan
    return plan


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_plain(arm: Any) -> bool:
    return arm in _SCALARS or arm is types.NoneType


def _is_bounded(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -LARGEST_INT <= value < LARGEST_INT
    return not isinstance(value, str) or len(value) <= MOST_CHARACTERS


def _check(value: Any, hint: Any, where: str) -> None:
    arm = next((arm for arm in _arms(hint) if _has_kind(value, arm)), None)
    if arm is None:
        raise TypeError(f"{where} is {_brief(value)}; its type is {_name(hint)}")
    if not _is_bounded(value):
        raise ValueError(f"{where} is {_brief(value)}, which is not finite or far too large")
    if get_origin(arm) is not None:
        if len(value) > MOST_ITEMS:
            raise ValueError(f"{where} has {len(value)} entries, more than {MOST_ITEMS}")
        entries = zip(value, value.values(), strict=True) if isinstance(value, Mapping) else ((item,) for item in value)
        for entry in entries:
            for item, of in zip(entry, get_args(arm), strict=False):
                _check(item, of, where)
    elif is_dataclass(arm):
        _check_fields(value)


def _has_kind(value: object, arm: Any) -> bool:
    origin = get_origin(arm)
    if origin is tuple:
        return isinstance(value, (list, tuple))
    if origin is not None:
        return isinstance(value, Mapping)
    if is_dataclass(arm) or not isinstance(arm, type) or issubclass(arm, Enum):
        return type(value) is arm
    return isinstance(value, _SCALARS.get(arm, arm))


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)


def _brief(value: object) -> str:
    """Name a value without asking it: its own repr may fail or never end."""
    shown = f" {value!r}" if type(value) in (int, float, bool) and _is_bounded(value) else ""
    if isinstance(value, float) and not shown:
        shown = f" {float(value)!r}"
    return f"{type(value).__name__}{shown}" if value is not None else "None"
