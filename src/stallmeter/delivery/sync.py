"""Send what a recording holds and its tracker lacks: after an outage, a crash, or to another tracker."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import RecordingError, TrackerError
from ..recording import Reader
from ..recording.cursor import Cursor, cursor_path, cursors, read_cursor, write_cursor
from ..recording.pending import is_written, sendable
from ..records.interfaces import Tracker
from ..records.redaction import HIDDEN
from ..report.files import complete_reports
from ..report.job.folder import report_of_job
from ..report.model import History, Report, read_history
from ..report.run_page import build_page
from ..rules.evaluation import diagnose
from .delivery import deliver, points_left
from .trackers.mlflow import MlflowTracker
from .trackers.neptune import RUN_ID_CHARACTERS, NeptuneScaleTracker, NeptuneTracker

NEPTUNE = {tracker.name: tracker for tracker in (NeptuneTracker, NeptuneScaleTracker)}
NEPTUNE_PATIENCE_S = 120.0
"""How long to wait for Neptune's client to hand over what it was given."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What `sync` did."""

    destination: str
    points: int
    skipped_parts: tuple[str, ...] = ()
    """Names of files that have no header and were passed over."""


def labels(folder: Path, rank: int = 0) -> tuple[str, ...]:
    """Return the labels of a rank's trackers to which `sync` can send: usually one, ``mlflow``."""
    return tuple(sendable(cursors(folder, rank))) or ("mlflow",)


def sync(
    folder: Path,
    *,
    rank: int = 0,
    tracking_uri: str | None = None,
    run_id: str | None = None,
    label: str = "mlflow",
    progress: Callable[[int, int], None] | None = None,
) -> SyncResult:
    """Deliver a recording to its tracker. Safe to repeat, also after it was interrupted.

    Args:
        folder: The recording's folder.
        rank: Whose files.
        tracking_uri: Where to send; by default where the run was going. ``neptune://WORKSPACE/PROJECT`` and
            ``neptune-scale://WORKSPACE/PROJECT`` are Neptune, ``neptune+offline:`` and ``neptune-scale+offline:`` its
            offline mode; all else is MLflow's. Credentials come from the environment: a recording holds none.
        run_id: The run; with a ``tracking_uri`` alone a new run is made, and completed by a repetition.
        label: Which of the run's trackers, where it had several; see `labels`.
        progress: Called with the number of points sent and of all points to send.

    Raises:
        RecordingError: There is no recording, it does not say where it was going, its run goes on, another `sync` is
            sending it, or its folder takes no files and something has to be written there.
        TrackerUnavailableError: The tracker does not answer; call again, it goes on where it stopped.
        TrackerError: The tracker refuses for good.
        MissingPackageError: The tracker's client is not installed.
    """
    with _alone(folder, rank):
        history = read_history(folder, rank)
        verdict = history.verdict if history.settled and history.verdict else history.guarded(diagnose)
        report = (report_of_job(history, verdict) if rank == 0 else None) or history.report(verdict)
        tracker, label = _tracker(folder, rank, tracking_uri, run_id, label)
        files = _finished_reports(folder, rank, history, report)
        if isinstance(tracker, MlflowTracker):
            tracker.end_status = _status(report)
            if not tracker.run_id:
                _start_run(folder, rank, tracker, label)
        total = points_left(folder, rank, tracker, label)
        try:
            sent = deliver(
                folder,
                rank,
                tracker,
                page=build_page(report, files, final=True),
                label=label,
                progress=None if progress is None else lambda done: progress(done, total),
            )
        except TrackerError as exc:
            if tracking_uri is None or run_id is not None:
                raise
            cursor = cursor_path(folder, label, rank)
            raise TrackerError(f"{exc}. To have another run made, delete {str(cursor)!r}") from exc
    return SyncResult(tracker.destination, sent, history.skipped_parts)


@contextmanager
def _alone(folder: Path, rank: int) -> Iterator[None]:
    """Keep others from sending the same recording at the same time; the lock goes with this process."""
    if is_written(folder, rank):
        header = Reader(folder, rank).newest()[1]
        raise RecordingError(
            f"{str(folder)!r} is still being written by process {header.pid} on {header.host}, which sends it itself; "
            "sync it when that program has ended"
        )
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RecordingError(f"another `stallmeter sync` is sending {str(folder)!r}; wait until it has ended") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(descriptor)


def _finished_reports(folder: Path, rank: int, history: History, report: Report) -> dict[str, Path]:
    try:
        return complete_reports(folder, rank, history, report)
    except OSError as exc:
        raise RecordingError(f"the reports of {str(folder)!r} are missing and cannot be written there: {exc}") from exc


def _status(report: Report) -> Literal["FINISHED", "FAILED", "KILLED"]:
    if report.ended is None:
        return "KILLED"
    return "FAILED" if report.ended.startswith("exception") else "FINISHED"


def _tracker(folder: Path, rank: int, tracking_uri: str | None, run_id: str | None, label: str) -> tuple[Tracker, str]:
    """Return where to send, and the label of its cursor."""
    if tracking_uri is None:
        cursor = read_cursor(cursor_path(folder, label, rank))
        if cursor is None:
            whose = f"rank {rank} of {str(folder)!r}" if rank else f"{str(folder)!r}"
            for known in cursors(folder, rank).values():
                if "neptune" in known.destination.partition(" ")[0] and "://" not in known.destination:
                    raise RecordingError(
                        f"{whose} was going to {known.destination}, which only the program that opened it can reach; "
                        "send it to a run of its own with --to neptune://WORKSPACE/PROJECT"
                    )
            raise RecordingError(
                f"{whose} does not say where it was going; pass --to URI (and --run-id ID for an existing run)"
            )
        tracking_uri, found, known_id = cursor.destination.rpartition(" run ")
        if not found:
            raise RecordingError(f"{str(folder)!r} was going to {cursor.destination!r}; pass --to URI --run-id ID")
        if HIDDEN in tracking_uri:
            raise RecordingError(
                f"{str(folder)!r} was going to {tracking_uri}, and no recording keeps a password; "
                f"pass --to URI --run-id {run_id or known_id}"
            )
        run_id = run_id or known_id
    if tracking_uri.partition(":")[0].partition("+")[0] in NEPTUNE:
        return _neptune_run(folder, rank, tracking_uri, run_id)
    return _new_run(folder, rank, tracking_uri) if run_id is None else _known_run(folder, rank, tracking_uri, run_id)


def _known_run(folder: Path, rank: int, tracking_uri: str, run_id: str) -> tuple[MlflowTracker, str]:
    tracker = MlflowTracker(tracking_uri, run_id)
    for label, cursor in cursors(folder, rank).items():
        if cursor.destination == tracker.destination:
            tracker.owns_run = cursor.ours
            return tracker, label
    return tracker, f"mlflow-to-{_digest(tracker.destination)}"


def _new_run(folder: Path, rank: int, tracking_uri: str) -> tuple[MlflowTracker, str]:
    """Go on with the run that an earlier call has made for a recording; without a run id when there is none yet."""
    new = MlflowTracker(tracking_uri, "", owns_run=True)
    label = f"mlflow-new-{_digest(new.destination)}"
    cursor = read_cursor(cursor_path(folder, label, rank))
    run_id = "" if cursor is None else cursor.destination.rpartition(" run ")[2]
    if cursor is None or not run_id:
        return new, label
    return MlflowTracker(tracking_uri, run_id, owns_run=cursor.ours), label


def _start_run(folder: Path, rank: int, tracker: MlflowTracker, label: str) -> None:
    """Start a run that a repetition will find: the cursor is tried before and names it at once."""
    path = cursor_path(folder, label, rank)
    if not _keeps(path, Cursor(tracker.destination, rank)):
        raise RecordingError(
            f"{str(path)!r} cannot be written, and without it each repetition would make another run; "
            "make the folder writable, copy it, or pass --run-id ID of a run that exists"
        )
    try:
        tracker.start_run(run_name=folder.resolve().name)
    finally:
        if not tracker.run_id:
            path.unlink(missing_ok=True)
    if not _keeps(path, Cursor(tracker.destination, rank, ours=True)):
        raise RecordingError(
            f"{str(path)!r} can no longer be written, and a run was made; go on with --run-id {tracker.run_id}"
        )


def _keeps(path: Path, cursor: Cursor) -> bool:
    write_cursor(path, cursor)
    return read_cursor(path) == cursor


def _neptune_run(folder: Path, rank: int, uri: str, run_id: str | None) -> tuple[Tracker, str]:
    """Open a run; on a server it is named after the recording, so that a repetition goes on with it."""
    scheme, _, project = uri.partition(":")
    client, _, mode = scheme.partition("+")
    if mode not in ("", "offline") or not (mode or project.strip("/")):
        raise RecordingError(f"{uri!r} is no Neptune; pass {client}://WORKSPACE/PROJECT or {client}+offline:")
    tracker = NEPTUNE[client].open_run(
        project.strip("/") or None,
        run_id=run_id or folder.resolve().name[-RUN_ID_CHARACTERS:],
        offline=mode == "offline",
        patience_s=NEPTUNE_PATIENCE_S,
    )
    same = (label for label, cursor in cursors(folder, rank).items() if cursor.destination == tracker.destination)
    return tracker, next(same, f"{client}-to-{_digest(tracker.destination)}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
