"""The program ends as it would have without us: same exit status, last words and weights. The recording can be read."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stallmeter.errors import RecordingError
from stallmeter.recording import Reader
from stallmeter.report.json import to_json
from stallmeter.report.model import Report, read_history

from ..warm import Forks
from .ending import BEFORE, STEPS, WORKERS

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
NOT_OURS = re.compile(r"(?m)^stallmeter: .*\n")
DIED = re.compile(r"RuntimeError: DataLoader worker \(.*\) (is killed|exited unexpectedly)")
CHANGES = re.compile(r"pid\(s\) [\d, ]+|pid \d+|0x[0-9a-f]+|line \d+")


@dataclass(frozen=True)
class Ending:
    """What one process left."""

    folder: Path

    @property
    def status(self) -> str:
        return self.read("status.txt")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    @property
    def last_words(self) -> str:
        """The last line that is not ours: the exception, where there was one."""
        said = NOT_OURS.sub("", self.read("err.txt")).splitlines() or [""]
        return CHANGES.sub("", said[-1])

    @property
    def weights(self) -> list[str]:
        """Of each process that still could save them: the one that trained, and its forks."""
        return sorted(path.read_text() for path in self.folder.glob("weights-*.json"))

    @property
    def report(self) -> Report:
        [recording] = (self.folder / "rec").iterdir()
        return read_history(recording).report()


def ending(endings: Path, name: str, which: str) -> Ending:
    return Ending(endings / name.replace("/", "") / which)


ALL = [*BEFORE, *STEPS, *WORKERS]
IN_BOTH = ["no /proc", "end", "exception", "SIGTERM", "fork and raise", "fork and sys.exit", "worker killed"]
"""What the other package is tried with."""
CASES = {"lightning.pytorch": ALL, "pytorch_lightning": IN_BOTH}
each_ending = pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, names in CASES.items() for name in names]
)
each_package = pytest.mark.parametrize("package", CASES)


@pytest.fixture(scope="module")
def all_endings(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def run(package: str) -> Path:
        folder = tmp_path_factory.mktemp("endings")
        done = forks.run(HERE / "ending.py", package, folder, *CASES[package], cwd=folder, timeout=280)
        (folder / "failed.txt").write_text("" if done.returncode == 0 else done.stderr)
        return folder

    return run


@pytest.fixture
def endings(all_endings: Callable[[str], Path], package: str) -> Path:
    """The folder of what programs left that train with this package."""
    folder = all_endings(package)
    assert not (failed := (folder / "failed.txt").read_text()), failed
    return folder


@each_ending
def test_the_end_is_the_same(endings: Path, name: str) -> None:
    without, ours = ending(endings, name, "without"), ending(endings, name, "with")
    assert ours.status == without.status != "None"
    assert ours.read("out.txt") == without.read("out.txt")
    if name in WORKERS:  # in one step or the next, and torch learns of it by a signal or when it asks
        assert DIED.match(ours.last_words)
        assert DIED.match(without.last_words)
    else:
        assert ours.last_words == without.last_words
        assert ours.weights == without.weights
    if "fork" in name:
        assert ours.read("child.txt") == without.read("child.txt")


STATUS = {"sys.exit": "3", "sys.exit with words": "1", "os._exit": "5", "os.abort": "-6", "exec": "9", "exception": "1"}
NO_CHANCE = ("os._exit", "os.abort", "exec", "SIGKILL")


@each_ending
def test_what_was_recorded_can_be_read(endings: Path, name: str) -> None:
    ours = ending(endings, name, "with")
    assert ours.status == STATUS.get(name, ours.status)
    if name in NO_CHANCE:  # within the first tenth of a second: the header may be all there is
        with contextlib.suppress(RecordingError):
            assert ours.report.ended is None
        [recording] = (ours.folder / "rec").iterdir()
        assert Reader(recording).header().framework
        return
    report = ours.report
    json.dumps(to_json(report), allow_nan=False)
    if name == "full disk":
        assert ours.read("err.txt").count("cannot be written") == 1
        assert not list(ours.folder.rglob("*.tmp"))
        assert report.ended in (None, "end")  # there is room again when the fit has ended
        return
    words = {
        "exception": "ValueError",
        "sys.exit": "SystemExit",
        "sys.exit with words": "SystemExit",
        "SIGINT": "KeyboardInterrupt",
        "SIGTERM": "SIGTERMException",
    }
    if name in WORKERS:
        assert str(report.ended).startswith("exception: ")
    elif name in words:
        assert report.ended == f"exception: {words[name]}"
        assert report.steps >= 2
    else:
        assert report.ended == "end"
        assert report.steps == 8


@each_package
def test_a_fork_adds_nothing_to_its_parents_recording(endings: Path) -> None:
    """A child that unwinds through the trainer finds our callback in it."""
    for name in ("fork and raise", "fork and sys.exit"):
        report = ending(endings, name, "with").report
        assert [event.name for event in report.events] == ["end"]
        assert report.steps == 8


@each_package
def test_without_proc_the_workers_are_measured_all_the_same(endings: Path) -> None:
    report = ending(endings, "no /proc", "with").report
    assert report.loader is not None
    assert report.loader.probed
    assert report.batch_cost is not None
    assert report.batch_cost.run_queue_s is None
    assert report.hardware.host["job_cpus"] is None
