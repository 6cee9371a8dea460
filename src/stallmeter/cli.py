"""The command line: record a program, read its recording, explain a rule, check the machine, see a demo.

A mistake of the user ends in one line on stderr and exit status 2, never in a traceback. Importing this module loads
the standard library only, so that ``stallmeter run`` costs the program it starts nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import errno
import inspect
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .errors import SettingError, StallmeterError
from .witness import watch_over

if TYPE_CHECKING:
    from .diagnosis import Verdict
    from .interfaces import Rule
    from .report.model import History, Report
    from .report.sheet import Sheet

REGRESSION = 1
USAGE_ERROR = 2
NOT_EXECUTABLE = 126
NOT_FOUND = 127
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell reports for a program that died of SIGPIPE."""

FORMATS = ("text", "markdown", "json", "html")
SHEET_FORMATS = ("text", "markdown", "json")
WIDTH = 80


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Args:
        argv: Arguments without the program's name; those of the process by default.
    """
    # Where the terminal's encoding lacks a character, a "?" is better than a traceback.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.call(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left (`| head`). Python would complain again when it flushes stdout at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except StallmeterError as exc:
        return _fail(str(exc))
    except OSError as exc:
        return _fail(f"{exc.strerror or exc}: {exc.filename!r}" if exc.filename else str(exc))
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _fail(message: str, status: int = USAGE_ERROR) -> int:
    print(f"stallmeter: {' '.join(message.split())}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stallmeter", description="Finds why PyTorch training is slow: data loading, callbacks, logging, the step."
    )
    parser.add_argument("--version", action="version", version=f"stallmeter {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    report = commands.add_parser("report", help="show a recording", description="Show a recording.")
    report.add_argument("path", nargs="?", default="stallmeter", type=Path, help="a recording, or a folder: its newest")
    report.add_argument("--format", choices=FORMATS, default="text")
    report.add_argument("--rank", type=int, help="which rank of a distributed run (default: the lowest)")
    report.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to stdout")
    report.set_defaults(call=_report)

    send = commands.add_parser(
        "sync",
        help="send what a tracker lacks of a recording",
        description="Send what the recording's MLflow run lacks, for example after an outage. Safe to repeat. "
        "With --to, send the recording to another MLflow, as a new run unless --run-id names one, or to Neptune: "
        "neptune://WORKSPACE/PROJECT, neptune-scale://WORKSPACE/PROJECT, neptune+offline: or neptune-scale+offline:",
    )
    send.add_argument(
        "path",
        nargs="?",
        default="stallmeter",
        type=Path,
        help="a recording, or a folder: all recordings below it that are not complete (with --to: its newest)",
    )
    send.add_argument("--to", metavar="URI", help="tracking URI; by default where the run was going")
    send.add_argument("--run-id", metavar="ID", help="an existing run")
    send.add_argument("--rank", type=int, default=0)
    send.set_defaults(call=_sync)

    _add_diagnose(commands)
    _add_compare(commands)

    run = commands.add_parser(
        "run",
        help="record a program that uses Lightning, unchanged",
        description="Run a program with STALLMETER=1, which attaches stallmeter to every Lightning Trainer in it. "
        "Arguments, stdin, signals and exit status are the program's own. Where nothing was measured, two lines say so "
        "when it has ended.",
        usage="stallmeter run [--dir DIR] -- python train.py ...",
    )
    run.add_argument("--dir", type=Path, help="where recordings go (default: ./stallmeter)")
    run.add_argument("program", nargs=argparse.REMAINDER, help="for example: python train.py --epochs 3")
    run.set_defaults(call=_run)

    doctor = commands.add_parser("doctor", help="check what can be measured on this machine")
    doctor.set_defaults(call=_doctor)

    rules = commands.add_parser("rules", help="list what stallmeter looks for")
    rules.set_defaults(call=_rules)

    explain = commands.add_parser("explain", help="explain a rule: meaning, evidence, advice, thresholds")
    explain.add_argument("rule", help="id of the rule, for example input-bound")
    explain.set_defaults(call=_explain)

    _add_probe(commands)

    demo = commands.add_parser("demo", help="train a small network on real images, with its verdict and MLflow run")
    demo.add_argument("--dir", type=Path, default=Path("demo-output"), help="default: ./demo-output")
    demo.add_argument("--epochs", type=_positive, default=6, help="default: 6")
    demo.add_argument("--num-workers", type=_count, default=0, help="try what the verdict advises (default: 0)")
    demo.add_argument("--apply", action="store_true", help="let stallmeter set the number of workers between epochs")
    demo.set_defaults(call=_demo)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return int(text)


# -- report -----------------------------------------------------------------------------------------------------------


def _report(arguments: argparse.Namespace) -> int:
    history = _read(arguments.path, arguments.rank)
    history.guarded(lambda _: _show(history, arguments.format, arguments.output))
    return 0


def _read(path: Path, rank: int | None) -> History:
    from .recording import find_recording, ranks
    from .report.model import read_history

    folder = find_recording(path)
    return read_history(folder, min(ranks(folder), default=0) if rank is None else rank)


def _show(history: History, form: str, output: Path | None, report: Report | None = None) -> None:
    report = report or history.report(None if history.settled else _judge(history))
    if output is not None:
        from .recording import write_atomically

        write_atomically(output, _render(history, report, form))
    elif form == "html" and sys.stdout.isatty():
        raise SettingError("the HTML report is no text for a terminal; say where to write it: --output report.html")
    elif form == "text":
        from .report.text import print_text

        print_text(report, sys.stdout)
    else:
        sys.stdout.write(_render(history, report, form))


def _judge(history: History) -> Verdict:
    from .defaults import diagnose

    return diagnose(history.window)


def _render(history: History, report: Report, form: str) -> str:
    if form == "html":
        from .report.html import to_html

        return to_html(history, report)
    if form == "json":
        from .report.json import to_json

        return json.dumps(to_json(report), indent=2, allow_nan=False) + "\n"
    if form == "markdown":
        from .report.markdown import to_markdown

        return to_markdown(report)
    from .report.text import to_text

    return to_text(report)


# -- diagnose ---------------------------------------------------------------------------------------------------------


def _add_diagnose(commands: Any) -> None:
    again = commands.add_parser(
        "diagnose",
        help="ask today's rules about an old recording",
        description="Ask today's rules about a recording, and show what they say against the recorded verdict.",
    )
    again.add_argument("path", nargs="?", default="stallmeter", type=Path, help="a recording, or a folder: its newest")
    again.add_argument("--format", choices=SHEET_FORMATS, default="text")
    again.add_argument("--rank", type=int, help="which rank of a distributed run (default: the lowest)")
    again.add_argument("--rule", action="append", default=[], metavar="ID", help="ask only this rule; repeatable")
    again.set_defaults(call=_diagnose)


def _diagnose(arguments: argparse.Namespace) -> int:
    from .defaults import diagnose
    from .report.rejudged import rejudge, rejudged_sheet, rejudged_to_json

    rules = [_rule(rule) for rule in dict.fromkeys(arguments.rule)]
    history = _read(arguments.path, arguments.rank)
    verdict = history.guarded(lambda window: diagnose(window, rules) if rules else diagnose(window))
    if rules:
        # What cures the run is known to all rules together only.
        verdict = dataclasses.replace(verdict, num_workers=None)
    changes = rejudge(history.verdict, verdict, history.header.version, [rule.id for rule in rules])
    report = dataclasses.replace(history.report(verdict), settled=False)
    if arguments.format == "json":
        from .report.json import to_json

        _show_json({**history.guarded(lambda _: to_json(report)), **rejudged_to_json(changes)})
        return 0
    history.guarded(lambda _: _show(history, arguments.format, None, report))
    print()
    _show_sheet(rejudged_sheet(changes), arguments.format)
    return 0


def _show_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _show_sheet(sheet: Sheet, form: str) -> None:
    if form == "markdown":
        from .report.sheet import sheet_to_markdown

        sys.stdout.write(sheet_to_markdown(sheet))
    else:
        from .report.text import print_sheet

        print_sheet(sheet, sys.stdout)


# -- compare ----------------------------------------------------------------------------------------------------------


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare two runs; exit status 1 on a regression",
        description="Compare two runs: step time, throughput, ledger, verdict. Each is a recording, a folder (its "
        "newest recording) or the id of an MLflow run. Exit status: 0, 1 for a regression beyond the limit and beyond "
        "the noise, 2 for a mistake.",
    )
    compare.add_argument("before", metavar="A", help="the run to compare with")
    compare.add_argument("after", metavar="B", help="the run in question")
    compare.add_argument(
        "--max-regression-pct", type=_percentage, metavar="P", help="a regression is more than P percent worse"
    )
    compare.add_argument("--metric", choices=("step_time", "throughput"), default="step_time", help="what decides")
    compare.add_argument("--tracking-uri", metavar="URI", help="of MLflow; MLFLOW_TRACKING_URI by default")
    compare.add_argument("--format", choices=SHEET_FORMATS, default="text")
    compare.set_defaults(call=_compare)


def _percentage(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 up")
    return value


def _compare(arguments: argparse.Namespace) -> int:
    from .compare import compare
    from .report.comparison_forms import comparison_sheet, comparison_to_json

    found = compare(
        arguments.before,
        arguments.after,
        metric=arguments.metric,
        max_regression_pct=arguments.max_regression_pct,
        tracking_uri=arguments.tracking_uri,
    )
    if arguments.format == "json":
        _show_json(comparison_to_json(found))
    else:
        _show_sheet(comparison_sheet(found), arguments.format)
    return REGRESSION if found.regressed else 0


# -- sync -------------------------------------------------------------------------------------------------------------


def _sync(arguments: argparse.Namespace) -> int:
    from .sync import labels

    status = 0
    for folder in _recordings_to_send(arguments):
        for label in ("mlflow",) if arguments.to is not None else labels(folder, arguments.rank):
            status = _send(folder, label, arguments) or status
    return status


def _recordings_to_send(arguments: argparse.Namespace) -> list[Path]:
    from .leftovers import leftovers_below
    from .recording import find_recording, is_recording

    path = arguments.path
    newest = find_recording(path)
    if arguments.to is not None or arguments.run_id is not None or is_recording(path):
        return [newest]
    found = leftovers_below(path)
    if not found:
        print(f"nothing is left to send below {path}; pass a recording to send it again")
    return found


def _send(folder: Path, label: str, arguments: argparse.Namespace) -> int:
    """Send one recording; one that cannot be sent does not keep the others back."""
    from .sync import sync

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            filled = round(30 * done / max(1, total))
            bar = f"\r[{'#' * filled}{' ' * (30 - filled)}] {done:,} of {total:,} points"
            print(bar, end="" if done < total else "\n", file=sys.stderr, flush=True)

    to = {"tracking_uri": arguments.to, "run_id": arguments.run_id, "label": label}
    try:
        done = sync(folder, rank=arguments.rank, **to, progress=show)
    except StallmeterError as exc:
        return _fail(f"{folder}: {exc}")
    print(f"{folder}: {done.points} points sent to {done.destination}")
    for name in done.skipped_parts:
        print(f"{folder}: {name} has no header and was passed over", file=sys.stderr)
    return 0


# -- run --------------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise SettingError("say what to run: stallmeter run -- python train.py")
    name = program[0]
    if name.endswith(".py") and shutil.which(name) is None:
        raise SettingError(f"{name!r} is a script, not a program; write: stallmeter run -- python {name}")
    environment = {**os.environ, "STALLMETER": "1"}
    if arguments.dir is not None:
        # Absolute, because the program may change its folder before it trains.
        environment["STALLMETER_DIR"] = str(arguments.dir.absolute())
    sys.stdout.flush()
    call_off = watch_over(environment, Path(environment.get("STALLMETER_DIR") or "stallmeter"))
    try:
        os.execvpe(name, program, environment)  # noqa: S606 - the program replaces this one: no shell is wanted
    except FileNotFoundError:
        call_off()
        what = "there is no program" if shutil.which(name) is None else "the interpreter is missing that is named by"
        return _fail(f"{what} {name!r}", NOT_FOUND)
    except OSError as exc:
        call_off()
        hint = " (does it begin with a line like #!/usr/bin/env python3?)" if exc.errno == errno.ENOEXEC else ""
        return _fail(f"{name!r} cannot be run: {exc.strerror}{hint}", NOT_EXECUTABLE)


# -- doctor -----------------------------------------------------------------------------------------------------------


def _doctor(_: argparse.Namespace) -> int:
    from .doctor import check_machine

    checks = check_machine(_gpu_sources())
    width = max(len(check.name) for check in checks)
    marks = {True: "ok", False: "FIX", None: "-"}
    for check in checks:
        print(f"{marks[check.ok]:<4} {check.name:<{width}}  {check.value}")
        if check.fix:
            print(
                textwrap.fill(check.fix, WIDTH, initial_indent=" " * (width + 7), subsequent_indent=" " * (width + 7))
            )
    return 1 if any(check.ok is False for check in checks) else 0


def _gpu_sources() -> tuple[Any, ...]:
    try:
        from .sources.nvml import NvmlSource
    except ImportError:
        return ()  # check_machine names the package that is missing
    source = NvmlSource()
    source.check()
    return (source,)


# -- rules ------------------------------------------------------------------------------------------------------------


def _rules(_: argparse.Namespace) -> int:
    from .rules import ALL_RULES

    width = max(len(rule.id) for rule in ALL_RULES)
    for rule in ALL_RULES:
        print(f"{rule.id:<{width}}  {rule.title}")
    print("\nMore about one: stallmeter explain RULE")
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    print(_page(_rule(arguments.rule)))
    return 0


def _rule(name: str) -> Rule:
    from .rules import ALL_RULES

    by_id = {rule.id: rule for rule in ALL_RULES}
    if name in by_id:
        return by_id[name]
    close = difflib.get_close_matches(name, by_id, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else "`stallmeter rules` lists them"
    raise SettingError(f"there is no rule {name!r}; {hint}")


def _page(rule: Rule) -> str:
    documentation = inspect.getdoc(sys.modules[type(rule).__module__]) or rule.title
    thresholds: list[Any] = [f for f in dataclasses.fields(rule) if "unit" in f.metadata]  # type: ignore[arg-type]
    lines = [rule.id, "=" * len(rule.id), "", documentation.replace("**", ""), ""]
    if thresholds:
        lines += ["Thresholds.", ""]
    for field in thresholds:
        value = f"{getattr(rule, field.name):g} {field.metadata['unit']}"
        source = textwrap.fill(field.metadata["source"], WIDTH, initial_indent="      ", subsequent_indent="      ")
        lines += [f"  {field.name} = {value}", source]
    return "\n".join(lines).rstrip()


# -- probe ------------------------------------------------------------------------------------------------------------


def _add_probe(commands: Any) -> None:
    probe = commands.add_parser(
        "probe",
        help="measure how fast a training would be with free data, and what num_workers and batch size do to it",
        description="Measure a training for a minute at most: the loader alone, the training on one batch, both "
        "together. The factory returns (module, data) of Lightning, with a dict of Trainer arguments behind them if "
        "need be, or (step, loader) of a plain loop.",
    )
    probe.add_argument("target", metavar="FACTORY", help="package.module:factory or path/to/file.py:factory")
    probe.add_argument(
        "--sweep-workers", type=_workers, metavar="auto|N,N,...", help="numbers of workers to measure besides"
    )
    probe.add_argument("--sweep-batch-size", type=_sizes, metavar="N,N,...", help="batch sizes to measure besides")
    probe.add_argument("--seconds", type=float, default=3.0, help="most time to measure in each phase (default: 3)")
    probe.add_argument("--time-limit-s", type=float, default=60.0, help="most time for everything (default: 60)")
    probe.add_argument("--recording", type=Path, metavar="PATH", help="take the present speed from a recorded run")
    probe.add_argument("--format", choices=FORMATS, default="text")
    probe.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to stdout")
    probe.add_argument("--trackers", choices=("auto", "mlflow", "neptune", "neptune-scale", "none"), default="auto")
    probe.add_argument("--run-id", metavar="ID", help="forward it to this MLflow run")
    probe.set_defaults(call=_probe)


def _workers(text: str) -> tuple[int, ...] | str:
    return text if text == "auto" else tuple(_count(part) for part in text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _probe(arguments: argparse.Namespace) -> int:
    from .probing import probe
    from .probing.show import render
    from .probing.target import load_target

    if arguments.run_id is not None:
        os.environ["MLFLOW_RUN_ID"] = arguments.run_id
    result = probe(
        **load_target(arguments.target),
        sweep_workers=arguments.sweep_workers,
        sweep_batch_size=arguments.sweep_batch_size,
        seconds=arguments.seconds,
        time_limit_s=arguments.time_limit_s,
        recording=arguments.recording,
        trackers=None if arguments.trackers == "none" else arguments.trackers,
    )
    shown = render(result, arguments.format)
    if arguments.output is None:
        sys.stdout.write(shown)
    else:
        from .recording import write_atomically

        write_atomically(arguments.output, shown)
    return 0


# -- demo -------------------------------------------------------------------------------------------------------------


def _demo(arguments: argparse.Namespace) -> int:
    from .demo import run_demo

    outcome = run_demo(
        arguments.dir, epochs=arguments.epochs, num_workers=arguments.num_workers, apply=arguments.apply, say=print
    )
    _show(_read(outcome.recording, None), "text", None)
    print(f"\n{outcome.next_steps()}")
    return 0
