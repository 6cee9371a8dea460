"""What dynamo counts, with and without a real one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.records import CompilerSample
from stallmeter.sources.compiler import CompilerSource


def dynamo(key: str = "_compile.compile_inner") -> tuple[dict[str, Any], Counter[int], list[float]]:
    frames: Counter[int] = Counter()
    times: list[float] = []
    modules: dict[str, Any] = {
        "torch._dynamo.convert_frame": SimpleNamespace(FRAME_COMPILE_COUNTER=frames),
        "torch._dynamo.utils": SimpleNamespace(compilation_time_metrics={"other": [99.0], key: times}),
    }
    return modules, frames, times


def test_nothing_without_dynamo() -> None:
    assert CompilerSource({}).sample(1.0) == ()
    assert CompilerSource({"torch._dynamo.utils": SimpleNamespace()}).sample(1.0) == ()


def test_counts_what_is_compiled_again() -> None:
    modules, frames, times = dynamo("_compile.<locals>.compile_inner")
    source = CompilerSource(modules)
    frames.update({0: 3, 1: 1})
    times += [9.0, 2.0, 8.0, 1.0]
    assert source.sample(1.0) == (
        CompilerSample(time_s=1.0, compilations=4, recompilations=2, seconds=20.0, recompile_s=3.0),
    )
    assert source.sample(2.0) == ()
    frames[1] += 1
    times.append(4.0)
    (found,) = source.sample(3.0)
    assert (found.compilations, found.recompilations, found.seconds, found.recompile_s) == (5, 3, 24.0, 7.0)
    source.close()


def test_only_this_run_counts() -> None:
    """What a fit before had compiled is not this one's; what it compiles of it again is."""
    modules, frames, times = dynamo()
    frames.update({0: 3})
    times += [9.0, 2.0, 8.0]
    source = CompilerSource(modules)
    (found,) = source.sample(1.0)
    assert (found.compilations, found.recompilations, found.seconds) == (0, 0, 0)
    frames.update({0: 1, 1: 1})
    times += [5.0, 6.0]
    (found,) = source.sample(2.0)
    assert (found.compilations, found.recompilations, found.seconds, found.recompile_s) == (2, 1, 11.0, 5.0)


def test_a_reset_of_dynamo() -> None:
    modules, frames, times = dynamo()
    frames.update({0: 3})
    times += [9.0, 2.0, 8.0]
    source = CompilerSource(modules)
    frames.clear()
    times.clear()
    frames.update({0: 2})
    times += [1.0, 1.0]
    (found,) = source.sample(1.0)
    assert (found.compilations, found.recompilations) == (2, 1)


def test_a_reset_within_the_run_forgets_nothing() -> None:
    """torch.compiler.reset() counts frames anew and leaves the times."""
    modules, frames, times = dynamo()
    source = CompilerSource(modules)
    frames.update({0: 8})
    times += [5.0] * 8
    (before,) = source.sample(1.0)
    frames.clear()
    frames.update({0: 2})
    times += [5.0] * 2
    (after,) = source.sample(2.0)
    assert (before.compilations, before.recompilations, before.recompile_s) == (8, 7, 35.0)
    assert (after.compilations, after.recompilations, after.seconds) == (10, 8, 50.0)
    assert after.recompile_s == 40.0
    frames.update({0: 1})
    times.append(5.0)
    assert source.sample(3.0)[0].recompilations == 9


def test_one_of_the_two_is_missing() -> None:
    modules, frames, times = dynamo()
    frames.update({0: 3})
    times += [9.0, 2.0, 8.0]
    (found,) = CompilerSource({"torch._dynamo.utils": modules["torch._dynamo.utils"]}).sample(1.0)
    assert (found.recompilations, found.seconds) == (None, 0)
    alone = {"torch._dynamo.convert_frame": modules["torch._dynamo.convert_frame"]}
    source = CompilerSource(alone)
    frames[0] += 2
    (found,) = source.sample(1.0)
    assert (found.recompilations, found.seconds, found.recompile_s) == (2, None, None)


@pytest.mark.long
def test_a_real_compiler() -> None:
    """Five sizes of batch, each compiled for: four times again. In a process of its own: dynamo stays imported."""
    pytest.importorskip("torch")
    program = """
        import sys
        from stallmeter.sources.compiler import CompilerSource
        import torch
        source = CompilerSource()
        model = torch.compile(torch.nn.Linear(8, 8), backend="eager", dynamic=False)
        source.sample(0.0)
        for size in range(2, 7):
            model(torch.ones(size, 8))
        (found,) = source.sample(1.0)
        assert (found.compilations, found.recompilations) == (5, 4), found
        assert 0 < found.recompile_s < found.seconds, found
        print("counted")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "counted" in done.stdout, done.stderr
