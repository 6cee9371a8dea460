"""What users install: built from the sdist, complete, in an environment that has nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging
ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stallmeter"


def call(*command: object, cwd: Path) -> str:
    """Run a program outside the source tree and return what it printed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "STALLMETER")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist as installers do it."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment in which only the wheel and what it depends on are installed."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    python = folder / "bin" / "python"
    pip(python, "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=folder)
    return python


def pip(python: Path, *arguments: object, cwd: Path) -> str:
    """Run our pip on another environment, which need not have one then."""
    return call(sys.executable, "-m", "pip", "--python", python, *arguments, cwd=cwd)


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"stallmeter/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= packed
    assert not [name for name in packed if name.startswith(("tests", "benchmarks"))]


def test_it_works_where_nothing_else_is_installed(empty: Path, tmp_path: Path) -> None:
    program = (
        "import stallmeter, time\n"
        "with stallmeter.Monitor(directory='runs') as monitor:\n"
        "    for batch in monitor.watch(range(50)):\n"
        "        time.sleep(0.002)\n"
    )
    call(empty, "-c", program, cwd=tmp_path)
    [run] = (tmp_path / "runs").iterdir()
    assert (run / "diagnosis.json").is_file()
    said = call(empty, "-m", "stallmeter", "report", run, "--format", "json", cwd=tmp_path)
    assert json.loads(said)["steps"] == 50
    assert "usable of" in call(empty, "-m", "stallmeter", "doctor", cwd=tmp_path)
    assert "no-workers" in call(empty.with_name("stallmeter"), "rules", cwd=tmp_path)


def test_the_variable_alone_reaches_every_program(empty: Path, tmp_path: Path) -> None:
    """The wheel's line is read at each start of this interpreter, and does nothing unless it is asked to."""
    look = "import sys; print([type(f).__module__ for f in sys.meta_path if 'stallmeter' in type(f).__module__])"
    variable = "import os, subprocess, sys; os.environ['STALLMETER'] = '1'; "
    asked = f"{variable}subprocess.run([sys.executable, '-c', {look!r}], check=True)"
    assert call(empty, "-c", look, cwd=tmp_path) == "[]\n"
    assert call(empty, "-c", asked, cwd=tmp_path) == "['stallmeter.zero_code.startup']\n"


def test_the_core_depends_on_two_packages(empty: Path, tmp_path: Path) -> None:
    pip(empty, "check", cwd=tmp_path)
    names = {line.split("==")[0].lower() for line in pip(empty, "freeze", cwd=tmp_path).splitlines()}
    assert {name for name in names if " @ " not in name} == {"psutil", "nvidia-ml-py"}


def test_all_extras_together_agree(tmp_path: Path) -> None:
    """`pip check` in the environment of the tests, which has every extra."""
    assert "No broken requirements" in call(sys.executable, "-m", "pip", "check", cwd=tmp_path)
