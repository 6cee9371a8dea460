"""Whether this CPU has instructions that compute with numbers of 16 bits: as Linux tells it of its first CPU.

Without them a library converts each operand to 32 bits and back, or computes number by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path

from .opened import OPEN

CPUINFO = Path("/proc/cpuinfo")

NAMES = ("flags", "Features")
"""What Linux calls the list on x86, and on Arm. No other processor is known here."""

LINES = 64
"""Of the first CPU, and more: with hundreds of CPUs the file is long."""

BFLOAT16, FLOAT16 = "bfloat16", "float16"

X86 = {BFLOAT16: ("avx512_bf16", "amx_bf16"), FLOAT16: ("avx512_fp16", "amx_fp16")}
ARM = {BFLOAT16: ("bf16",), FLOAT16: ("asimdhp",)}

CONVERTS = "avx_ne_convert"
"""An x86 CPU with this and none of those converts quickly and computes with 32 bits: what that costs is not known."""


def computes_16_bits(text: str | None = None) -> Mapping[str, bool] | None:
    """Return for ``bfloat16`` and ``float16`` whether the CPU computes with it; None where that cannot be known.

    Args:
        text: Of ``/proc/cpuinfo``; by default this machine's. macOS and Windows have none.
    """
    name, flags = _flags(_lines() if text is None else text.splitlines())
    if not flags:
        return None
    wanted = X86 if name == "flags" else ARM
    found = {kind: any(flag in flags for flag in known) for kind, known in wanted.items()}
    known = {kind: has for kind, has in found.items() if has or CONVERTS not in flags}
    return known or None


def wide_vectors(text: str | None = None) -> bool | None:
    """Return whether an x86 CPU computes with vectors of 512 bits (``avx512f``): libraries imitate 16 bits with them.

    Args:
        text: As of `computes_16_bits`.

    Returns:
        None of other CPUs, and where that cannot be known.
    """
    name, flags = _flags(_lines() if text is None else text.splitlines())
    return "avx512f" in flags if name == "flags" and flags else None


def _flags(lines: Iterable[str]) -> tuple[str, frozenset[str]]:
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in NAMES:
            return name.strip(), frozenset(value.split())
    return "", frozenset()


def _lines() -> Iterable[str]:
    try:
        return _read(CPUINFO)
    except OSError:
        return ()


@cache
def _read(path: Path) -> Iterable[str]:
    # Once: several ask, and some kernels measure each CPU's speed for it.
    with OPEN(path, encoding="utf-8", errors="replace") as file:
        return tuple(islice(file, LINES))
