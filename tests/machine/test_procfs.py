"""What the kernel says in files: nothing is worse than nothing."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from stallmeter.machine.procfs import counts_run_queue, process_age_s, read_numbers, read_text


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


@pytest.mark.skipif(sys.platform != "linux", reason="no such file elsewhere")
def test_for_how_long_this_process_has_run() -> None:
    age_s = process_age_s()
    assert age_s is not None
    assert age_s == pytest.approx(time.time() - psutil.Process().create_time(), abs=5.0)  # psutil knows it to a second
    assert (process_age_s() or 0.0) >= age_s


@pytest.mark.parametrize("stat", [None, "", "1 (a b) c) S 1", f"1 (python) {'x ' * 40}"])
def test_a_kernel_that_does_not_tell_when_this_process_began(tmp_path: Path, stat: str | None) -> None:
    if stat is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/stat").write_text(stat)
    assert process_age_s(tmp_path) is None


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux")
def test_a_programs_name_may_look_like_the_rest(tmp_path: Path) -> None:
    began = int(os.sysconf("SC_CLK_TCK") * (time.clock_gettime(time.CLOCK_BOOTTIME) - 100.0))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/stat").write_text(f"7 (a) b 1 2) S {'1 ' * 18}{began} 5 6")
    assert process_age_s(tmp_path) == pytest.approx(100.0, abs=10.0)
