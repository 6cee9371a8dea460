"""What is freed when a function returns is its own time, and no time of who called it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable

from stallmeter.sources.code.calls import Budget, Node, profile_function
from stallmeter.sources.code.freeing import Idle
from stallmeter.sources.code.whose import Whose


def makes() -> int:
    tokens = [(k, str(k)) for k in range(300_000)]
    return len(tokens)


def keeps_the_result() -> tuple[int, int]:
    found = makes()
    return found, 0


def adds() -> object:
    found = makes()
    return [found] * 3_000_000


def seen_of(function: Callable[[], object]) -> tuple[float, float]:
    """Return the time of what makes the tokens, with all beneath it, and that of its caller alone, seconds."""
    root = Node()
    callback, settle = profile_function(root, Budget(10**7), Whose.of_program())
    before = sys.getprofile()
    sys.setprofile(callback)
    try:
        function()
    finally:
        sys.setprofile(before)
    settle()
    outer = next(node for node in root.callees.values() if node.code is function.__code__)
    inner = next(node for node in outer.callees.values() if node.code is makes.__code__)

    def total(node: Node) -> float:
        return node.wall_ns + sum(map(total, node.callees.values()))

    return total(inner) / 1e9, outer.wall_ns / 1e9


def test_it_is_the_time_of_what_has_returned() -> None:
    inner_s, outer_s = seen_of(keeps_the_result)
    assert outer_s < inner_s / 20


def test_what_the_caller_does_is_its_own() -> None:
    """Nothing tells apart what is freed and what is added then."""
    _, outer_s = seen_of(adds)
    assert outer_s > 0.001


def _calls_at(function: Callable[..., object]) -> list[int]:
    return [one.offset for one in dis.get_instructions(function) if one.opname.startswith("CALL")]


def _branches(tokens: list[int]) -> int:
    found = len(tokens)
    if found:
        found += sum(tokens)
    more = len(tokens)
    return len([more])


def test_instructions_that_do_nothing() -> None:
    idle, code = Idle(), _branches.__code__
    first, second, third, fourth = _calls_at(_branches)
    assert idle.between(code, third, fourth)
    assert not idle.between(code, first, second), "it may have gone elsewhere"
    assert not idle.between(code, second, third), "it adds"
    assert not idle.between(code, third, first), "it has gone round"
    assert not idle.between(code, third, third)
    assert idle.between(code, third, fourth), "what is known stays so"
