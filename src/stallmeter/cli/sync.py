"""``stallmeter sync``: send what a tracker lacks of recordings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import SettingError, StallmeterError
from .arguments import fail


def add(commands: Any) -> None:
    """Add the command."""
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
        help="a recording, or a folder: all below it that are not complete (with --to or --run-id: the newest)",
    )
    send.add_argument("--to", metavar="URI", help="tracking URI; by default where the run was going")
    send.add_argument("--run-id", metavar="ID", help="an existing run")
    send.add_argument("--rank", type=int, default=0)
    send.set_defaults(call=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..delivery.sync import labels

    if arguments.to is not None and not arguments.to.strip():
        raise SettingError("--to is empty; give a tracking URI, or leave --to out for where the run was going")
    status, unexpected = 0, _Unexpected()
    for folder in _recordings_to_send(arguments):
        for label in ("mlflow",) if arguments.to is not None else labels(folder, arguments.rank):
            with unexpected:
                status = _send(folder, label, arguments) or status
    if unexpected.first is not None:
        raise unexpected.first
    return status


class _Unexpected:
    """Keeps what nobody foresaw until the other recordings are sent."""

    first: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool:
        if not isinstance(exc, Exception):
            return False
        self.first = self.first or exc
        return True


def _recordings_to_send(arguments: argparse.Namespace) -> list[Path]:
    from ..recording import find_recording, is_recording
    from ..recording.pending import pending_deliveries_below

    path = arguments.path
    newest = find_recording(path)
    if arguments.to is not None or arguments.run_id is not None or is_recording(path):
        return [newest]
    found = pending_deliveries_below(path)
    if not found:
        print(f"nothing is left to send below {path}; pass a recording to send it again")
    return found


def _send(folder: Path, label: str, arguments: argparse.Namespace) -> int:
    """Send one recording; one that cannot be sent does not keep the others back."""
    from ..delivery.sync import sync

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            filled = round(30 * done / max(1, total))
            bar = f"\r[{'#' * filled}{' ' * (30 - filled)}] {done:,} of {total:,} points"
            print(bar, end="" if done < total else "\n", file=sys.stderr, flush=True)

    to = {"tracking_uri": arguments.to, "run_id": arguments.run_id, "label": label}
    try:
        done = sync(folder, rank=arguments.rank, **to, progress=show)
    except (StallmeterError, OSError) as exc:
        return fail(f"{folder}: {exc}")
    print(f"{folder}: {done.points} points sent to {done.destination}")
    for name in done.skipped_parts:
        print(f"{folder}: {name} has no header and was passed over", file=sys.stderr)
    return 0
