"""Runs Lightning's own tests without the callback and with it in every Trainer; fails on what fails only with it.

    python tests/upstream/run.py CHECKOUT [FOLDER ...]

CHECKOUT is a checkout of Lightning's repository at the version that is installed beside stallmeter.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

FOLDERS = ("callbacks", "loops", "trainer", "tuner", "checkpointing", "loggers", "models")
PLUGIN = "stallmeter_in_every_trainer"
HERE = Path(__file__).resolve().parent
BROKEN = ("failed", "error")

_CONNECTOR = "tests_pytorch.trainer.connectors.test_callback_connector"
EXPECTED = frozenset(
    f"{_CONNECTOR}::{test}"
    for test in (
        "test_checkpoint_callbacks_are_last",
        "test_attach_model_callbacks",
        "test_configure_external_callbacks",
    )
)
"""They compare ``trainer.callbacks`` with a list of their own: any callback from outside fails them."""


def main() -> int:
    """Run what the arguments ask for. Returns 1 when something fails only with us."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--timeout", type=int, default=120, help="most seconds for one test")
    asked = parser.parse_args()
    theirs, installed = (asked.checkout / "src" / "version.info").read_text().strip(), version("lightning")
    if theirs != installed:
        parser.error(f"the checkout is Lightning {theirs}, installed is {installed}: their tests fit their own version")
    suite = asked.checkout / "tests"
    found: dict[bool, dict[str, dict[str, str]]] = {False: {}, True: {}}
    for folder in asked.folders:
        for ours in (False, True):
            found[ours][folder] = outcomes(suite, [f"tests_pytorch/{folder}"], ours, asked.timeout)
    for ours in (False, True):
        print_table("with stallmeter" if ours else "without", found[ours])
    suspects = [
        name
        for folder in asked.folders
        for name, outcome in found[True][folder].items()
        if outcome in BROKEN and found[False][folder].get(name) not in BROKEN and name not in EXPECTED
    ]
    guilty = again(suite, suspects, asked.timeout)
    for name in suspects:
        print(f"fails only with stallmeter: {name}" if name in guilty else f"failed once, not again: {name}")
    for name in sorted(EXPECTED & {n for tests in found[True].values() for n in tests}):
        print(f"looks at the list of callbacks, not counted: {name}")
    missing = [n for f in asked.folders for n in found[False][f] if n not in found[True][f]]
    for name in missing:
        print(f"ran only without stallmeter: {name}")
    print(f"\n{len(guilty)} of Lightning {theirs}'s tests fail only with stallmeter")
    return 1 if guilty or missing else 0


def again(suite: Path, suspects: Sequence[str], timeout_s: int) -> set[str]:
    """Return those that fail with us once more and pass without: a busy machine fails tests, too."""
    if not suspects:
        return set()
    ids = [to_id(suite, name) for name in suspects]
    without, ours = (outcomes(suite, ids, with_us, timeout_s) for with_us in (False, True))
    return {name for name in suspects if ours.get(name) in (*BROKEN, None) and without.get(name) not in BROKEN}


def to_id(suite: Path, name: str) -> str:
    """Return pytest's name of a test from junit's: ``tests_pytorch.tuner.test_x.TestY::test_z[1]``."""
    dotted, _, test = name.partition("::")
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        path = Path(*parts[:end]).with_suffix(".py")
        if (suite / path).is_file():
            return "::".join([path.as_posix(), *parts[end:], test])
    raise ValueError(f"no file below {suite} holds {name}")


def outcomes(suite: Path, tests: Iterable[str], ours: bool, timeout_s: int) -> dict[str, str]:
    """Run tests and return the outcome of each by its name.

    Raises:
        RuntimeError: pytest did not come to its end.
    """
    with tempfile.TemporaryDirectory() as place:
        results = Path(place) / "results.xml"
        options = ["-p", PLUGIN] if ours else []
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
        command += [*options, f"--timeout={timeout_s}", f"--junitxml={results}", *tests]
        environment = {**os.environ, "PYTHONPATH": str(HERE), "STALLMETER": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=suite, env=environment, check=False)
        if done.returncode not in (0, 1) or not results.is_file():
            raise RuntimeError(f"pytest ended with status {done.returncode}")
        return dict(read(results))


def read(results: Path) -> Iterable[tuple[str, str]]:
    """Yield name and outcome from a file in junit's format."""
    for case in ET.parse(results).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "passed"
        for tag, meaning in (("skipped", "skipped"), ("failure", "failed"), ("error", "error")):
            if tag in kinds:
                outcome = meaning
        # The folder of the suite is part of the name or not, depending on where pytest finds its settings.
        yield f"{str(case.get('classname')).removeprefix('tests.')}::{case.get('name')}", outcome


def print_table(title: str, found: dict[str, dict[str, str]]) -> None:
    """Print the number of tests by folder and outcome."""
    columns = ("passed", "failed", "error", "skipped")
    print(f"\n{title:<16}" + "".join(f"{column:>9}" for column in columns))
    for folder, tests in found.items():
        counts = Counter(tests.values())
        print(f"{folder:<16}" + "".join(f"{counts[column]:>9}" for column in columns))


if __name__ == "__main__":
    sys.exit(main())
