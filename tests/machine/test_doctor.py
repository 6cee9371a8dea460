"""What the doctor finds, and what it says to do."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallmeter.machine.budget import Budget
from stallmeter.machine.doctor import check_machine

DATA = Path(__file__).parents[1] / "data"
GIB = 1 << 30
GOOD = Budget(
    host_cpus=64,
    affinity_cpus=32,
    quota_cpus=16.0,
    ranks_on_node=4,
    memory_limit_bytes=128 * GIB,
    shm_bytes=64 * GIB,
    shm_free_bytes=60 * GIB,
    cgroup_version=2,
)


def checks(budget=GOOD, sources=(), root=DATA / "cgroup2_unlimited", version=lambda package: "1.2.3"):
    found = check_machine(sources, root=root, environ={}, budget=budget, version=version)
    return {check.name: check for check in found}


def source(**kwargs):
    known = {"name": "nvml", "reason": None, "fix": "", "note": None, "summary": "A100", "not_measured": {}}
    return SimpleNamespace(**(known | kwargs))


def test_budget_is_said_with_its_parts():
    found = checks()
    assert found["CPUs"].value == ("16 usable of 64 on the host (affinity 32, quota 16); 4 ranks on this node: 4 each")
    assert found["memory limit"].value == "128 GiB"
    assert found["shared memory"].value == "60 GiB free of 64 GiB in /dev/shm"
    assert found["cgroup"].value == "version 2"
    assert all(found[name].ok and not found[name].fix for name in ("CPUs", "memory limit", "shared memory", "cgroup"))


@pytest.mark.parametrize(
    ("name", "budget", "ok", "value"),
    [
        ("CPUs", Budget(host_cpus=64, quota_cpus=1.0), False, "1 usable of 64 on the host (affinity unknown, quota 1)"),
        ("CPUs", Budget(host_cpus=2, ranks_on_node=4), False, "2 usable of 2"),
        ("shared memory", Budget(host_cpus=8, shm_bytes=64 << 20, shm_free_bytes=64 << 20), False, "0.0625 GiB free"),
        ("shared memory", Budget(host_cpus=8), None, "no /dev/shm"),
        ("memory limit", Budget(host_cpus=8), None, "unknown"),
        ("cgroup", Budget(host_cpus=8), None, "none"),
    ],
)
def test_what_is_short_or_absent(name, budget, ok, value):
    check = checks(budget)[name]
    assert check.ok is ok
    assert check.value.startswith(value)
    assert bool(check.fix) == (ok is False)


PROC = {
    "run-queue wait": ("proc/thread-self/schedstat", "120 45 3\n", "0 0 0\n"),
    "pressure (PSI)": ("proc/pressure/cpu", "some avg10=0.00 total=12\n", ""),
    "bytes read": ("proc/self/io", "rchar: 1\nread_bytes: 0\n", "rchar: 1\n"),
}


@pytest.mark.parametrize("name", PROC)
def test_kernel_statistics(tmp_path, name):
    path, present, switched_off = PROC[name]
    assert checks(root=tmp_path)[name].ok is None
    assert checks(root=tmp_path)[name].fix
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(switched_off)
    assert checks(root=tmp_path)[name].ok is None
    (tmp_path / path).write_text(present)
    assert checks(root=tmp_path)[name].ok is True
    assert [other for other in PROC if checks(root=tmp_path)[other].ok] == [name]


def test_sources_say_what_they_measure_or_why_not():
    assert (checks(sources=[source()])["nvml"].ok, checks(sources=[source()])["nvml"].value) == (True, "A100")
    closed = checks(sources=[source(reason="no driver", fix="install it")])["nvml"]
    assert (closed.ok, closed.value, closed.fix) == (None, "no driver", "install it")
    noted = checks(sources=[source(note="set CUDA_DEVICE_ORDER")])["nvml"]
    assert (noted.ok, noted.value, noted.fix) == (False, "A100", "set CUDA_DEVICE_ORDER")


def test_versions_and_missing_packages():
    def version(package):
        if package in {"neptune", "psutil"}:
            raise metadata.PackageNotFoundError(package)
        return "7.0"

    found = checks(version=version)
    assert (found["mlflow"].ok, found["mlflow"].value) == (True, "7.0")
    assert (found["neptune"].ok, found["neptune"].value) == (None, "not installed")
    assert (found["psutil"].ok, found["psutil"].fix) == (False, "pip install psutil")
    for package in ("rich", "plotly", "jinja2", "matplotlib", "neptune-scale"):
        assert (found[package].ok, found[package].value) == (True, "7.0")


def test_the_start_method_is_asked_and_not_fixed():
    code = (
        "import multiprocessing, stallmeter.machine.doctor as doctor;"
        "checks = {check.name: check.value for check in doctor.check_machine()};"
        "assert multiprocessing.get_start_method(allow_none=True) is None;"
        "multiprocessing.set_start_method('spawn');"
        "again = {check.name: check.value for check in doctor.check_machine()};"
        "print(checks['start method'], '|', again['start method'])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip().endswith("(default) | spawn")


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from stallmeter.machine.doctor import check_machine; check_machine();"
        "print(*{'torch', 'mlflow', 'lightning', 'neptune', 'psutil', 'pynvml'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == ""
