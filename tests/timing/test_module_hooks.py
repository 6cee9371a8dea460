"""Where torch's hooks for all modules are put, and where not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.timing.module_hooks import hooked

MODULES: dict[str, Any] = {"torch": object(), "torch.nn.modules.module": object()}


def test_torch_and_what_takes_hooks() -> None:
    assert hooked(MODULES) == (MODULES["torch"], MODULES["torch.nn.modules.module"])
    nothing_yet = SimpleNamespace(FRAME_COMPILE_COUNTER={})
    assert hooked({**MODULES, "torch._dynamo.convert_frame": nothing_yet}) is not None


@pytest.mark.parametrize(
    "modules",
    [
        {},
        {"torch": object()},
        {**MODULES, "torch": None},
        {**MODULES, "torch._dynamo.convert_frame": SimpleNamespace(FRAME_COMPILE_COUNTER={0: 1})},
    ],
    ids=["no torch", "half imported", "kept out", "something is compiled"],
)
def test_where_none_are_put(modules: dict[str, Any]) -> None:
    assert hooked(modules) is None
