"""The command line as a user meets it: exit status, one-line errors, and a program run unchanged."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stallmeter
from stallmeter import cli
from stallmeter.cli.arguments import FORMATS
from stallmeter.engine.run_check import NOTHING
from stallmeter.errors import RecordingError
from stallmeter.machine.ends import ask_wait_status
from stallmeter.recording import Reader
from stallmeter.records import Event
from stallmeter.records.steps import END
from stallmeter.rules import ALL_RULES
from stallmeter.rules.job import JOB_RULES

from ..report.job.folders import write_job
from ..report.recordings import HOSTILE, complete_run, ledger, step, write
from ..rules.job.jobs import Known, compute_bound, diagnosis, late
from ..warm import NO_PICTURES

EVERY_RULE = (*ALL_RULES, *JOB_RULES)
PROGRAM = (sys.executable, "-m", "stallmeter")


def call(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, with files as its streams."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            status = cli.main([*map(os.fspath, arguments)])
        except SystemExit as exc:  # of argparse
            status = int(str(exc.code))
    said = []
    for stream in streams:
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(arguments, status, *said)


def process(*arguments: str | os.PathLike[str], **options) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [*PROGRAM, *map(os.fspath, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def fails(done: subprocess.CompletedProcess[str], *words: str, status: int = 2) -> None:
    """Assert one line on stderr that says these words, and this exit status."""
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("stallmeter: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.fixture
def recording(tmp_path):
    return write(tmp_path / "stallmeter" / "20260101-000000-ab12cd", complete_run())


# -- report


@pytest.mark.parametrize("level", ["folder", "parent", "file"])
def test_report_finds_the_recording(recording, level):
    """A recording, the folder of many, or one of its files will do."""
    path = {"folder": recording, "parent": recording.parent, "file": recording / "rank0.0000.jsonl"}[level]
    done = process("report", path)
    assert done.returncode == 0
    assert "CRITICAL  No worker prepares batches beside the loop" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_report_default_path(recording):
    """Without a path it is ./stallmeter, where recordings go by default."""
    done = process("report", "--format", "json", cwd=recording.parents[1])
    assert json.loads(done.stdout)["run"]["id"] == "ab12cd"


def test_report_newest(tmp_path):
    """Of several recordings the newest is shown."""
    for name, steps, age_s in (("b", 1, 100), ("a", 2, 0), ("c", 3, 200)):
        folder = write(tmp_path / name, [step(0), ledger(steps=steps)])
        stamp = time.time() - age_s
        os.utime(folder / "rank0.0000.jsonl", (stamp, stamp))
    assert json.loads(call("report", tmp_path, "--format", "json").stdout)["steps"] == 2


def test_report_formats(recording, tmp_path):
    """Each format goes to stdout or, whole, to a file."""
    starts = (("text", "stallmeter 0.1.0"), ("markdown", "**No worker"), ("json", "{\n"), ("html", "<!doctype html>"))
    for form, start in starts:
        shown = call("report", recording, "--format", form)
        assert shown.stdout.startswith(start)
        file = tmp_path / f"report.{form}"
        written = call("report", recording, "--format", form, "--output", file)
        assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
        assert file.read_text(encoding="utf-8") == shown.stdout


@pytest.mark.parametrize(
    ("name", "form"),
    [("x.html", "html"), ("x.HTM", "html"), ("x.json", "json"), ("x.md", "markdown"), ("x.txt", "text"), ("x", "text")],
)
def test_the_files_name_tells_the_format(recording, tmp_path, name, form):
    """Unless another one is asked for."""
    assert cli.main(["report", str(recording), "--output", str(tmp_path / name)]) == 0
    assert cli.main(["report", str(recording), "--output", str(tmp_path / "asked"), "--format", form]) == 0
    assert (tmp_path / name).read_bytes() == (tmp_path / "asked").read_bytes()
    assert cli.main(["report", str(recording), "--output", str(tmp_path / name), "--format", "text"]) == 0
    assert (tmp_path / name).read_text(encoding="utf-8").startswith("stallmeter 0.1.0")


def test_report_html_is_not_for_a_terminal(recording, monkeypatch, capsys):
    """Two megabytes of HTML are not poured over a screen."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["report", str(recording), "--format", "html"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--output report.html" in said.err


def test_report_html_without_its_packages(recording, tmp_path):
    """One line that names the package and the extra, and no file."""
    program = f"""
import sys
sys.modules["plotly"] = sys.modules["plotly.offline"] = None
from stallmeter import cli
sys.exit(cli.main(["report", {str(recording)!r}, "--format", "html", "--output", {str(tmp_path / "x.html")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    fails(done, "'plotly'", "pip install 'stallmeter[report]'")
    assert not (tmp_path / "x.html").exists()


def test_report_of_a_killed_run_asks_the_rules_again(tmp_path):
    """A recording without an end has no final verdict: today's rules judge what is there."""
    folder = write(tmp_path, [*(step(i) for i in range(40)), ledger(steps=40)])
    with (folder / "rank0.0000.jsonl").open("ab") as file:
        file.write(b'["step",41,')
    document = json.loads(call("report", folder, "--format", "json").stdout)
    assert document["run"]["ended"] is None
    assert document["run"]["settled"] is False
    assert document["primary"]["rule"] in {rule.id for rule in ALL_RULES}


def test_report_keeps_the_recorded_verdict(recording):
    """The verdict of a run that ended is shown as it was."""
    document = json.loads(call("report", recording, "--format", "json").stdout)
    assert document["primary"]["rule"] == "no-workers"
    assert document["run"]["settled"] is True


def test_report_ranks(tmp_path):
    """--rank picks one; without it the lowest that is there is taken."""
    write(tmp_path, [step(0), ledger(steps=12)], rank=2, world_size=4)
    write(tmp_path, [step(0), ledger(steps=13)], rank=3, world_size=4)
    assert json.loads(call("report", tmp_path, "--format", "json").stdout)["steps"] == 12
    assert json.loads(call("report", tmp_path, "--format", "json", "--rank", "3").stdout)["steps"] == 13
    fails(call("report", tmp_path, "--rank", "0"), "no recording of rank 0", "rank 2, 3")


JOB = {
    0: Known([compute_bound()]),
    1: Known([diagnosis("fetch-stall", 4.0, title="The workers wait for storage or the network")]),
}


@pytest.fixture
def job(tmp_path):
    return write_job(tmp_path / "20260101-000000-ab12cd", late(1, "data_wait", 0.02), known=JOB)


def test_report_of_a_job(job):
    """Without --rank all ranks are judged as one job, in every format; with it one of them alone."""
    text = call("report", job).stdout
    assert "CRITICAL  Rank 1: The workers wait for storage or the network" in text
    assert "Rank 0 waits for rank 1, late with its data" in text
    assert call("report", job, "--format", "markdown").stdout.startswith("**Rank 1: The workers wait for storage")
    document = json.loads(call("report", job, "--format", "json").stdout)
    assert (document["primary"]["rule"], document["primary"]["ranks"]) == ("fetch-stall", [1])
    assert [row["rank"] for row in document["ranks"]] == [0, 1]
    html = call("report", job, "--format", "html").stdout
    assert html.count("--strength") >= 2
    assert "The ranks of the job" in html


def test_report_of_one_rank_of_a_job(job):
    """It cannot say that nothing is wrong: its steps may be waits for others."""
    victim = json.loads(call("report", job, "--rank", "0", "--format", "json").stdout)
    assert (victim["job"], victim["ranks"], victim["primary"]) == (None, [], None)
    assert {"rule": "compute-bound", "missing": ["the other ranks"]} in victim["abstained"]
    culprit = json.loads(call("report", job, "--rank", "1", "--format", "json").stdout)
    assert culprit["primary"]["rule"] == "fetch-stall"
    assert "ranks" not in culprit["primary"]
    assert "The ranks of the job" not in call("report", job, "--rank", "1", "--format", "html").stdout


def test_report_of_one_recording_of_a_job(tmp_path):
    """Where the others wrote elsewhere it says so."""
    folder = write_job(tmp_path, late(1, "data_wait", 0.02), known=JOB, only=(0,))
    text = " ".join(call("report", folder).stdout.split())
    assert "Who waits for whom was not judged: only rank 0 of 2 is known." in text
    assert "Nothing is known of rank 1." in text
    assert "compute-bound (needs the other ranks)" in text


def test_report_mistakes(tmp_path, recording):
    """Wrong paths and files are named in one line."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    fails(call("report", tmp_path / "nowhere"), "nowhere")
    fails(call("report", tmp_path / "empty"), "holds no recording")
    fails(call("report", tmp_path / "notes.txt"), "notes.txt")
    fails(call("report", tmp_path / "two\nlines"), "two")
    fails(call("report", recording, "--output", tmp_path / "nowhere" / "x.txt"), "No such file or directory")
    fails(call("report", write(tmp_path / "header", [])), "is empty")
    fails(process("report", cwd=tmp_path / "empty"), "'stallmeter'")


@pytest.mark.parametrize(
    "content", ["", "{", "null\n", '["header",{"schema":"x","run_id":1,"started_s":2}]\n', "\0\0\n"]
)
def test_report_of_broken_json(tmp_path, content):
    """A broken file is an error of one line."""
    (tmp_path / "rank0.0000.jsonl").write_text(content)
    fails(call("report", tmp_path), "rank0.0000.jsonl")


@pytest.mark.parametrize("form", FORMATS)
def test_report_of_wrong_types(tmp_path, form):
    """A value of a wrong type, wherever it surfaces, is the recording's fault."""
    folder = write(tmp_path, [*(step(i) for i in range(9)), ledger(steps="many", epochs=[], own_s={})])
    fails(call("report", folder, "--format", form), "damaged")


def test_wrong_types_asked_by_name(tmp_path):
    """The same of who asks the rules alone."""
    wrong = ledger(steps="many", wall_s="long", epochs=[], own_s={})
    folder = write(tmp_path, [*(step(i) for i in range(9)), wrong, Event(time_s=1.0, name=END)])
    with pytest.raises(RecordingError, match="damaged"):
        stallmeter.recommend_num_workers(folder)
    fails(call("sync", folder, "--to", f"sqlite:///{tmp_path}/x.db"), "damaged")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_report_of_an_unreadable_file(recording):
    """A file that may not be read is named."""
    (recording / "rank0.0000.jsonl").chmod(0)
    fails(call("report", recording), "Permission denied", "rank0.0000.jsonl")


def test_permission_error_is_one_line(recording, monkeypatch, capsys):
    """Whoever may not read it is told so, root or not."""

    def refuse(*_):
        raise PermissionError(13, "Permission denied", "rank0.0000.jsonl")

    monkeypatch.setattr(Reader, "header", refuse)
    assert cli.main(["report", str(recording)]) == 2
    assert capsys.readouterr().err == "stallmeter: Permission denied: 'rank0.0000.jsonl'\n"


def test_unknown_format(recording):
    """An unknown format lists the known ones."""
    done = call("report", recording, "--format", "xml")
    assert done.returncode == 2
    assert "xml" in done.stderr
    assert "markdown" in done.stderr
    assert "Traceback" not in done.stderr


def test_broken_pipe(recording):
    """`| head -1` ends without a complaint."""
    command = (
        f"{shlex.join(PROGRAM)} report {shlex.quote(str(recording))} --format json | head -c 1; exit ${{PIPESTATUS[0]}}"
    )
    write(recording, [ledger(callbacks={f"callback {i}": 1.0 for i in range(20_000)})])
    # An unbuffered stdout takes a part of what is written to a closed pipe for all of it, and never complains.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "{"
    assert done.stderr == ""
    assert done.returncode == cli.BROKEN_PIPE


@pytest.mark.parametrize("command", ["rules", "report RECORDING --output OUT", "run -- touch OUT"])
def test_without_a_standard_output(recording, tmp_path, command):
    """What was asked for is done where nothing can be printed: `>&-`."""
    out = tmp_path / "out.md"
    arguments = command.replace("RECORDING", str(recording)).replace("OUT", str(out))
    shell = f"{sys.executable} -m stallmeter {arguments} >&-"
    done = subprocess.run(["sh", "-c", shell], check=False, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert out.exists() == ("OUT" in command)


def test_ascii_terminal(recording):
    """A terminal without the characters gets question marks, not a traceback."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = process("report", recording, env=environment)
    assert done.returncode == 0
    assert "########" in done.stdout


def test_hostile_names(tmp_path):
    """Names that mean something in markup or to a terminal are only shown."""
    folder = write(tmp_path, [step(0), ledger(callbacks={HOSTILE: 20.0})])
    done = call("report", folder)
    assert done.returncode == 0
    assert "[bold]x[/bold] [/]" in done.stdout
    assert "\x1b" not in done.stdout


# -- run


def run_script(tmp_path: Path, source: str, *arguments: str, options: tuple[str, ...] = (), **more):
    script = tmp_path / "train.py"
    script.write_text(source)
    return process("run", *options, "--", sys.executable, script, *arguments, **more)


def test_run_sets_the_environment(tmp_path):
    """The program sees STALLMETER=1 and where recordings go, as an absolute path."""
    source = "import os; print(os.environ['STALLMETER'], os.environ['STALLMETER_DIR'])"
    done = run_script(tmp_path, source, options=("--dir", "here"), cwd=tmp_path)
    assert done.stdout.split() == ["1", str(tmp_path / "here")]


def test_run_keeps_the_users_directory(tmp_path):
    """Without --dir a STALLMETER_DIR of the environment stays."""
    done = run_script(
        tmp_path, "import os; print(os.environ['STALLMETER_DIR'])", env={**os.environ, "STALLMETER_DIR": "x"}
    )
    assert done.stdout.strip() == "x"


@pytest.mark.parametrize("status", [0, 1, 3, 77])
def test_run_passes_the_exit_status(tmp_path, status):
    """The exit status is the program's own."""
    assert run_script(tmp_path, f"raise SystemExit({status})").returncode == status


def test_run_passes_arguments(tmp_path):
    """Spaces, quotes, dashes, our own option names and a second -- arrive as they were."""
    arguments = ["--epochs", "3", "a b", "", "'\"", "--", "--dir", "x", "-h", "--version", "*", "$HOME", "ü"]
    done = run_script(tmp_path, "import json, sys; print(json.dumps(sys.argv[1:]))", *arguments)
    assert json.loads(done.stdout) == arguments


def test_run_without_dashes(tmp_path):
    """The -- may be left out."""
    done = process("run", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--dir", "x")
    assert done.stdout.strip() == "['--dir', 'x']"


def test_run_passes_stdin_and_stderr(tmp_path):
    """stdin, stdout and stderr are the program's own."""
    done = run_script(tmp_path, "import sys; print(input(), file=sys.stderr)", input="hello\n")
    assert (done.stdout, done.stderr) == ("", f"hello\n{NOTHING}")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
def test_run_passes_signals(tmp_path, sent):
    """A signal reaches the program itself: there is no process in between."""
    script = tmp_path / "train.py"
    script.write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nprint('up', flush=True)\nsignal.pause()"
    )
    process = subprocess.Popen([*PROGRAM, "run", "--", sys.executable, script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(sent)
        assert process.wait(timeout=30) == -sent


def test_run_handler_of_the_program(tmp_path):
    """The program's own handler decides what SIGTERM does."""
    source = "import os, signal, sys\nsignal.signal(15, lambda *_: sys.exit(5))\nos.kill(os.getpid(), 15)"
    assert run_script(tmp_path, source).returncode == 5


def knows_how_strangers_ended() -> bool:
    """Whether the system tells it also when the parent was the first to ask: Linux, from 6.15 on."""
    if not hasattr(os, "pidfd_open"):
        return False
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    descriptor = os.pidfd_open(child.pid)
    child.wait()
    status = ask_wait_status(descriptor)
    os.close(descriptor)
    assert status in (None, 3 << 8)
    return status is not None


MEASURES = f"{NO_PICTURES}import stallmeter; [batch for batch in stallmeter.watch([[1, 2]] * 3)]"


@pytest.mark.parametrize(
    ("source", "measured"),
    [
        ("pass", False),
        ("raise SystemExit(3)", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", False),
        ("import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'pass'])", False),
        (MEASURES, True),
        (f"{NO_PICTURES}import stallmeter; stallmeter.Monitor(directory='elsewhere', trackers=None).close()", True),
        (f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {MEASURES!r}])", True),
        (f"import subprocess, sys; subprocess.run([sys.executable, '-c', {MEASURES!r}])", True),
        ("import os; os.environ.clear(); os.mkdir('stallmeter/of-another-machine')", True),
    ],
    ids=["nothing", "failed", "killed", "exec", "watch", "elsewhere", "exec and watch", "child", "another machine"],
)
def test_run_of_a_program_that_measures_nothing(tmp_path, source, measured):
    """A line says so and how to change it, a short one where the program failed; not where any process has measured."""
    (tmp_path / "stallmeter").mkdir()
    os.utime(tmp_path / "stallmeter", (0, 0))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STALLMETER")}
    done = run_script(tmp_path, source, cwd=tmp_path, env={**clean, "TMPDIR": str(temporary)})
    failed = "status 3" if "SystemExit" in source else "by signal 9" if "SIGKILL" in source else ""
    failed = failed if knows_how_strangers_ended() else ""
    assert (NOTHING in done.stderr) == (not measured and not failed)
    if failed:
        assert done.stderr.splitlines()[-1].endswith(failed)
        assert len(done.stderr.splitlines()[-1]) < 80
    assert done.stderr.count("nothing was recorded") == (not measured)
    assert list(temporary.iterdir()) == []
    if "SystemExit" in source:
        assert done.returncode == 3


def test_an_output_that_is_no_file(recording):
    """An empty variable of a shell, a folder, a stdout that is closed: the recording is not to blame."""
    fails(process("report", recording, "--output", ""), "'.' is a folder", "name a file")
    fails(process("report", recording, "--output", recording), "is a folder", "name a file")
    fails(process("probe", "train:make", "--output", ""), "'.' is a folder", "name a file")
    closed = " ".join(map(shlex.quote, [*PROGRAM, "report", str(recording)])) + " >&-"
    done = subprocess.run(["sh", "-c", closed], capture_output=True, text=True, timeout=60, check=False)
    fails(done, "stdout is closed", "--output")


def test_sync_to_nowhere(recording):
    """An empty variable of a shell is no address."""
    fails(process("sync", recording, "--to", "", cwd=recording.parent), "--to is empty")
    assert [path.name for path in recording.parent.iterdir()] == [recording.name]


@pytest.mark.parametrize("size", ['"1"', "1.5", "-1", str(10**400), "null", "true"])
@pytest.mark.parametrize("command", ["report", "diagnose"])
def test_a_damaged_header(recording, size, command):
    """It is said, in one line."""
    (file,) = recording.glob("*.jsonl")
    text = file.read_text()
    assert '"world_size":1' in text
    file.write_text(text.replace('"world_size":1', f'"world_size":{size}', 1))
    fails(process(command, recording), str(recording))


KILLED = f"{NO_PICTURES}import os, stallmeter\nfor i, _ in enumerate(stallmeter.watch([1] * 9)):"


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("os._exit(3)", "ended with status 3"),
        ("os._exit(0)", "ended with status 0"),
        ("pass", ""),
    ],
)
def test_run_of_a_program_that_is_killed_before_its_report(tmp_path, end, how):
    """Nobody of the program is left to say where its recording lies."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STALLMETER")}
    done = run_script(tmp_path, f"{KILLED}\n if i == 5: {end}", cwd=tmp_path, env={**clean, "TMPDIR": str(tmp_path)})
    (recording,) = (tmp_path / "stallmeter").iterdir()
    said = f"before its report; what was recorded until then: stallmeter report {shlex.quote(str(recording))}\n"
    if how and knows_how_strangers_ended():
        assert done.stderr.endswith(f"stallmeter: the program {how} {said}")
    assert (said in done.stderr) == bool(how)


def test_run_where_nothing_can_be_written(tmp_path):
    """Without a temporary folder nobody waits for the program's end; it runs all the same."""
    source = (
        "import tempfile; from stallmeter import cli; tempfile.mkdtemp = lambda **_: open('/nowhere/x'); cli.main()"
    )
    start = [sys.executable, "-c", source, "run", "--", sys.executable, "-c", "print('trained')"]
    done = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n")


def test_run_leaves_the_program_without_children(tmp_path):
    """Whoever waits for its children meets none that it has not started."""
    source = "import os, psutil\ntry: os.wait()\nexcept ChildProcessError: print(psutil.Process().children())"
    assert run_script(tmp_path, source).stdout == "[]\n"


def test_run_mistakes(tmp_path):
    """No program, no such program, a bare script, a file that is no program."""
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "data").write_text("x")
    (tmp_path / "noshebang").write_text("print(1)")
    (tmp_path / "noshebang").chmod(0o755)
    (tmp_path / "badshebang").write_text("#!/nowhere/python\n")
    (tmp_path / "badshebang").chmod(0o755)
    fails(process("run"), "say what to run")
    fails(process("run", "--"), "say what to run")
    fails(process("run", "--", "pyhton", "train.py"), "there is no program 'pyhton'", status=127)
    fails(process("run", "--", "train.py", cwd=tmp_path), "write: stallmeter run -- python train.py")
    fails(process("run", "--", "./train.py", cwd=tmp_path), "write: stallmeter run -- python ./train.py")
    fails(process("run", "--", "./data", cwd=tmp_path), "cannot be run: Permission denied", status=126)
    fails(process("run", "--", "./noshebang", cwd=tmp_path), "#!/usr/bin/env python3", status=126)
    fails(process("run", "--", "./badshebang", cwd=tmp_path), "interpreter is missing", status=127)


def test_run_of_an_executable_script(tmp_path):
    """A script that the system can start is started."""
    script = tmp_path / "train.py"
    script.write_text(f"#!{sys.executable}\nimport os; print(os.environ['STALLMETER'])\n")
    script.chmod(0o755)
    assert process("run", "--", script).stdout.strip() == "1"


def test_run_imports_no_third_party():
    """`stallmeter run` costs the program it starts nothing but the standard library."""
    program = (
        "import sys; before = set(sys.modules); import stallmeter.cli\n"
        "print({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names) - {'stallmeter'})"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


# -- the rest


def test_version():
    """--version names the package and its version."""
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"stallmeter {stallmeter.__version__}\n")


def test_no_command():
    """Without a command the usage is shown."""
    done = call()
    assert done.returncode == 2
    assert "usage: stallmeter" in done.stderr


def test_rules_lists_all(capsys):
    """Every rule has a line with its id and title."""
    assert cli.main(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for rule in EVERY_RULE:
        assert [line for line in lines if line.startswith(f"{rule.id} ") and line.endswith(rule.title)]
    assert lines.index("Over all ranks of a job:") < lines.index(next(x for x in lines if x.startswith("straggler ")))


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.id)
def test_explain(rule, capsys):
    """Every rule explains itself: its page, and each threshold with unit and source."""
    assert cli.main(["explain", rule.id]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"{rule.id}\n")
    for heading in ("What it means.", "Evidence.", "Advice.", "When it is wrong."):
        assert heading in page
    for field in dataclasses.fields(rule):
        if "unit" in field.metadata:
            assert f"{field.name} = {getattr(rule, field.name):g} {field.metadata['unit']}" in page
            assert " ".join(field.metadata["source"].split()) in " ".join(page.split())


def test_explain_suggests():
    """A misspelt rule is answered with the nearest one; nonsense with the list."""
    fails(call("explain", "input-bond"), "did you mean 'input-bound'?")
    fails(call("explain", "zzz"), "stallmeter rules")


def test_doctor():
    """The doctor lists what it found; its status says whether something is to be fixed."""
    done = process("doctor")
    assert "CPUs" in done.stdout
    assert "psutil" in done.stdout
    assert done.stderr == ""
    assert done.returncode == ("FIX " in done.stdout)


def test_interrupt(monkeypatch):
    """Ctrl-C is an exit status, not a traceback."""

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("stallmeter.cli.rules._list", interrupt)
    assert cli.main(["rules"]) == cli.INTERRUPTED


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--epochs", "x"], ["--num-workers", "-1"]])
def test_demo_arguments(arguments):
    """Numbers out of range are refused before anything is written."""
    done = call("demo", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_demo_names_every_missing_package(tmp_path):
    """Without the extra, one line names what is missing and how to get it."""
    program = (
        "import sys\nfor name in ('mlflow', 'sklearn'): sys.modules[name] = None\n"
        "from stallmeter.cli import main\nsys.exit(main(['demo']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    fails(done, "mlflow, scikit-learn", "pip install 'stallmeter[demo]'")
    assert list(tmp_path.iterdir()) == []
