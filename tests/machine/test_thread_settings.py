"""How many threads the environment asks for, and how many cores there are for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallmeter.machine.thread_settings import ThreadSettings, read_thread_settings


def _machine(root: Path, *siblings: str) -> Path:
    for cpu, text in enumerate(siblings):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    return root


def test_two_cpus_of_a_core_are_one_core(tmp_path: Path) -> None:
    root = _machine(tmp_path, "0,2", "1,3", "0,2", "1,3")
    assert read_thread_settings(range(4), root, {}).cores == 2
    assert read_thread_settings({1, 3}, root, {}).cores == 1
    assert read_thread_settings({0, 1}, root, {}).cores == 2


def test_cores_that_are_not_told(tmp_path: Path) -> None:
    assert read_thread_settings(None, tmp_path, {}).cores is None
    assert read_thread_settings(range(2), tmp_path, {}).cores is None
    assert read_thread_settings(range(3), _machine(tmp_path, "0", "1"), {}).cores is None


def test_variables_that_are_set(tmp_path: Path) -> None:
    environ = {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "", "HOME": "/"}
    assert read_thread_settings(None, tmp_path, environ).variables == {"OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("variables", "threads", "name"),
    [
        ({"OMP_NUM_THREADS": "4"}, 4, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4,2"}, 4, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4"}, 1, None),
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, 1, "MKL_NUM_THREADS"),
        ({}, 1, None),
    ],
)
def test_which_of_them_asks_for_the_number(variables: dict[str, str], threads: int, name: str | None) -> None:
    assert ThreadSettings(variables=variables).sets(threads) == name
