"""How it gets into a program: at the interpreter's start, without an import of torch, and not unasked."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stallmeter.cli.run import SITE

ROOT = Path(__file__).resolve().parents[2]
PTH = ROOT / "src" / "stallmeter-auto.pth"

FAKE = """
class DataLoader:
    def __iter__(self):
        return iter([1, 2])
"""

LOOK = """
import sys
heavy = ("torch", "stallmeter.engine.", "psutil")
before = sorted(name for name in sys.modules if name.startswith(heavy) and name != "stallmeter.engine.environment")
import torch.utils.data.dataloader as module
print(before, module.DataLoader.__iter__.__code__.co_filename.endswith("patches.py"))
print(type(module.__loader__).__name__, type(module.__spec__.loader).__name__)
print(any("site" == entry.rpartition("/")[2] and "zero_code" in entry for entry in sys.path))
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with something that looks like torch."""
    folder = tmp_path / "packages" / "torch" / "utils" / "data"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "dataloader.py").write_text(FAKE)
    return tmp_path / "packages"


def run(*arguments: object, path: tuple[Path, ...], **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("STALLMETER", "PYTHON"))}
    environment = {**clean, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("asked", [True, False])
def test_a_class_is_wrapped_when_its_module_is_imported(packages: Path, asked: bool) -> None:
    done = run("-c", LOOK, path=(SITE, packages), **({"STALLMETER": "1"} if asked else {}))
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"[] {asked}", "SourceFileLoader SourceFileLoader", "False"]


GONE = """
import sys
import torch.utils.data.dataloader as module
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("stallmeter."):
            raise OSError(24, "Too many open files", name)
sys.meta_path.insert(0, Gone())
for _ in range(2):
    print(list(module.DataLoader()))
"""


def test_where_its_files_cannot_be_read_any_more_the_program_goes_on(packages: Path, tmp_path: Path) -> None:
    """Once, in one line, it is said; whoever waits for the end of the program has nothing to add."""
    done = run("-c", GONE, path=(SITE, packages), STALLMETER="1", STALLMETER_WITNESS=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n[1, 2]\n")
    said = "stallmeter: nothing more is recorded of this program: OSError: [Errno 24] Too many open files"
    assert done.stderr.splitlines() == [f"{said}: 'stallmeter.engine.options'"]
    assert (tmp_path / "measured").exists()


def test_a_sitecustomize_of_the_users_is_run_and_stands_in_its_place(packages: Path) -> None:
    (packages / "sitecustomize.py").write_text("print('mine'); NAME = __file__\n")
    done = run(
        "-c",
        "import sitecustomize; print(sitecustomize.NAME)",
        path=(SITE, packages),
        STALLMETER="1",
    )
    assert done.stdout.splitlines() == ["mine", str(packages / "sitecustomize.py")]


def test_one_that_fails_fails_as_before(packages: Path) -> None:
    (packages / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    plain = run("-c", LOOK, path=(packages,))
    ours = run("-c", LOOK, path=(SITE, packages), STALLMETER="1")
    assert "ValueError: theirs" in plain.stderr
    assert "ValueError: theirs" in ours.stderr
    assert ours.stdout.splitlines()[0] == "[] True"


def test_an_older_interpreter_can_read_it_and_nothing_begins(packages: Path) -> None:
    """A child may be of Python 2.7: it knows no annotations, no f-strings and no arguments by keyword alone."""
    text = (SITE / "sitecustomize.py").read_text(encoding="ascii")
    tree = ast.parse(text, feature_version=(3, 5))
    for node in ast.walk(tree):
        assert not isinstance(node, (ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef))
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None
            assert not node.args.args + node.args.kwonlyargs
    (packages / "sitecustomize.py").write_text("print('mine')\n")
    program = (
        "import os, runpy, sys; sys.version_info = (3, 9, 0); sys.path.insert(0, sys.argv[1]); "
        "os.environ['STALLMETER'] = '1'; "
        "runpy.run_path(sys.argv[1] + '/sitecustomize.py'); "
        "print([name for name in sys.modules if name.startswith('stallmeter.zero_code')])"
    )
    done = run("-c", program, SITE, path=(packages,))
    assert (done.stdout.splitlines()[-2:], done.stderr) == (["mine", "[]"], "")


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_with_an_older_interpreter_where_there_is_one(packages: Path, version: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no Python {version}")
    (packages / "sitecustomize.py").write_text("print('mine')\n")
    environment = {**os.environ, "PYTHONPATH": f"{SITE}{os.pathsep}{packages}", "STALLMETER": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run([python, "-c", ""], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("mine\n", "")


def test_children_are_reached(packages: Path) -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOOK!r}], check=True)"
    done = run("-c", program, path=(SITE, packages), STALLMETER="1")
    assert done.stdout.splitlines()[0] == "[] True"


def test_an_interpreter_without_stallmeter_runs_as_before(packages: Path) -> None:
    done = run("-S", "-c", "import sitecustomize; print('up')", path=(SITE, packages), STALLMETER="1")
    assert (done.stdout, done.stderr) == ("up\n", "")


ASKED = [
    *(("1", True), ("true", True), ("YES", True), (" on", True)),
    *(("0", False), ("no", False), ("Off", False), ("", False)),
]


@pytest.mark.parametrize(("value", "asked"), ASKED)
def test_words_for_yes_and_no(packages: Path, value: str, asked: bool) -> None:
    done = run("-c", LOOK, path=(SITE, packages), STALLMETER=value)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == f"[] {asked}"


def test_a_word_that_says_neither_is_named_once(packages: Path) -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOOK!r}], check=True)"
    done = run("-c", program, path=(SITE, packages), STALLMETER="yep")
    assert done.stdout.splitlines()[0] == "[] False"
    assert done.stderr.count("\n") == 1
    assert "STALLMETER is 'yep', so nothing is measured; give 1, true, yes, on" in done.stderr


@pytest.mark.parametrize("asked", ["1", "0"])
def test_the_line_of_the_pth_file(packages: Path, asked: str) -> None:
    line = PTH.read_text(encoding="utf-8")
    assert line.startswith("import ")
    assert line.count("\n") == 1
    done = run("-c", line + LOOK, path=(packages,), STALLMETER=asked)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == f"[] {asked == '1'}"
