"""What the kernel says in files: nothing is worse than nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallmeter.machine.procfs import counts_run_queue, read_numbers, read_text


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    assert read_text(None) == read_text(tmp_path) == read_text(tmp_path / "none") == ""
    assert read_numbers(tmp_path / "none", r"^(a) (\d+)$") == {}


def test_names_and_numbers_are_found_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_bytes(b"pswpin 12\npswpout 3\npswpinx 9\n\xff 1\n")
    assert read_numbers(tmp_path / "vmstat", r"^(pswpin|pswpout) (\d+)$") == {"pswpin": 12, "pswpout": 3}


@pytest.mark.parametrize(
    ("said", "counts"), [("120 45 3\n", True), ("0 0 0\n", False), ("", False), ("1 2", False), ("0 0 1", True)]
)
def test_a_kernel_without_scheduler_statistics_is_known(said: str, counts: bool) -> None:
    assert counts_run_queue(said) is counts
