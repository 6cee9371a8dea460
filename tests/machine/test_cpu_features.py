"""Instructions for numbers of 16 bits, as Linux tells of them on different CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallmeter.machine import cpu_features
from stallmeter.machine.cpu_features import computes_16_bits, wide_vectors

X86 = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 f16c avx512f {}\nbugs\t\t:\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd {}\n"


@pytest.mark.parametrize(
    ("text", "bfloat16", "float16"),
    [
        (X86.format(""), False, False),
        (X86.format("avx512_bf16"), True, False),
        (X86.format("amx_bf16"), True, False),
        (X86.format("avx512_bf16 avx512_fp16"), True, True),
        (X86.format("amx_fp16"), False, True),
        (X86.format("bf16"), False, False),
        (ARM.format(""), False, False),
        (ARM.format("fphp asimdhp"), False, True),
        (ARM.format("fphp asimdhp bf16"), True, True),
    ],
)
def test_what_it_has(text: str, bfloat16: bool, float16: bool) -> None:
    assert computes_16_bits(text) == {"bfloat16": bfloat16, "float16": float16}


def test_a_cpu_that_only_converts_is_not_known() -> None:
    assert computes_16_bits(X86.format("avx_ne_convert")) is None
    assert computes_16_bits(X86.format("avx_ne_convert amx_bf16")) == {"bfloat16": True}


@pytest.mark.parametrize("text", ["", "processor\t: 0\nisa\t: rv64imafdc\n", "flags\t:\n"])
def test_what_does_not_tell(text: str) -> None:
    assert computes_16_bits(text) is None
    assert wide_vectors(text) is None


def test_vectors_of_512_bits() -> None:
    assert wide_vectors(X86.format("")) is True
    assert wide_vectors("flags\t\t: fpu avx2 f16c\n") is False
    assert wide_vectors(ARM.format("bf16")) is None


def test_the_first_cpu_of_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(cpu_features, "CPUINFO", file)
    assert computes_16_bits() is None
    file.write_text(X86.format("avx512_bf16") + X86.format("") * 1000, encoding="utf-8")
    assert computes_16_bits() == {"bfloat16": True, "float16": False}
