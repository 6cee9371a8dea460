"""Who waits for the end of a program: what it has of the program's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open") or not Path("/proc/self/fd").exists(), reason="nobody waits, or nobody can be asked"
)

GIVES_UP = """
import os, sys
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 2) if sys.argv[1] == "replace" else os.close(2)
print("gone", flush=True)
sys.stdin.read()
"""


def start(*program: str, folder: Path, **more: object) -> subprocess.Popen[bytes]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STALLMETER")}
    command = [sys.executable, "-m", "stallmeter", "run", "--", sys.executable, "-c", *program]
    return subprocess.Popen(command, cwd=folder, env=clean, stdin=subprocess.PIPE, **more)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("how", ["replace", "close"])
def test_a_program_that_gives_up_its_stderr_has_given_it_up(tmp_path: Path, how: str) -> None:
    """Who reads it to its end, as one does who starts a daemon, reads on while the program runs, and is not held up."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(GIVES_UP, how, folder=tmp_path, **pipes) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"gone\n"
        assert running.stderr.read() == b""  # comes back when nobody has it any more
        assert running.poll() is None
        running.communicate()
    assert running.returncode == 0


def test_what_else_the_program_was_given_is_its_own(tmp_path: Path) -> None:
    read, write = os.pipe()
    program = f"import os, sys; os.close({write}); sys.stdin.read()"
    with start(program, folder=tmp_path, stderr=subprocess.PIPE, pass_fds=[write]) as running:
        os.close(write)
        assert os.read(read, 1) == b""
        assert running.poll() is None
        _, said = running.communicate()
    os.close(read)
    assert b"nothing was recorded" in said


def test_its_line_comes_through_the_pipe_of_a_program_that_has_kept_it(tmp_path: Path) -> None:
    with start("import sys; sys.exit(3)", folder=tmp_path, stderr=subprocess.PIPE) as running:
        _, said = running.communicate()
    assert running.returncode == 3
    assert said == b"stallmeter: nothing was recorded: the program ended with status 3\n"


ENDING = """
import os, subprocess, sys
from stallmeter.engine import run_check
run_check.LOOK_S, run_check.ENDING_S = 0.0, 60.0
run_check._has_our_stderr = lambda _: False
ending = subprocess.Popen([sys.executable, "-c", "pass"])
run_check._wait_for_descriptor(os.pidfd_open(ending.pid), ending.pid)
os.write(2, b"told")
"""


def test_a_program_that_ends_has_not_given_up_its_stderr() -> None:
    """Its descriptors are closed before anybody is told of its end."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, check=False)
    assert done.stderr == b"told"
