"""A warning that something will not work for ever fails a test when our own code is the cause."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest

import stallmeter

PACKAGE = Path(stallmeter.__file__).parent


def warn(category: type[Warning], file: Path, module: str) -> None:
    warnings.warn_explicit("ends with 4.0", category, str(file), 1, module, registry={})


@pytest.mark.parametrize("category", [DeprecationWarning, PendingDeprecationWarning])
def test_ours_is_found_on_any_thread(category: type[Warning], deprecations: list[str]) -> None:
    thread = threading.Thread(target=warn, args=(category, PACKAGE / "some" / "module.py", "stallmeter.some.module"))
    thread.start()
    thread.join()
    (said,) = deprecations
    assert said.endswith(f"{category.__name__}: ends with 4.0")
    deprecations.clear()


def test_other_peoples_is_not(deprecations: list[str]) -> None:
    warn(DeprecationWarning, Path(warnings.__file__), "torch.utils")
    assert deprecations == []
