"""Forwards to a run of ``neptune_scale``, the Neptune 3.x client: series, configs, tags and files.

The client writes what it is given to a database of its own, from where a process of its own sends it. One call costs a
commit, some 4 ms, which the forwarder's thread pays.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import logging
import multiprocessing
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ....errors import MissingPackageError, TrackerError, TrackerUnavailableError
from ....records.interfaces import Page, Point
from ...messages import client_message
from .fields import page_values
from .run import NeptuneRun, client_errors, project_of, tags_of
from .substeps import PlacedPoint

PREFIX = "neptune-scale://"
"""Begins the destination of a run on a server: ``neptune-scale://WORKSPACE/PROJECT run ID``."""

OFFLINE_PROJECT = "offline/stallmeter"
"""An offline run needs the name of a project; it can be sent to another one."""

LARGEST_STEP = 1e12
"""Neptune takes steps from 0 to below this."""

WITHDRAWN = "none"
"""What an earlier page said and the newest does not."""

_log = logging.getLogger("stallmeter")


class NeptuneScaleTracker(NeptuneRun):
    """Forwards to one run, which somebody else started and will close unless it was made by `open_run`.

    Step metrics go below ``base_namespace``, hardware below ``base_namespace/hardware``, configs below
    ``base_namespace/summary``. The run gets the tags ``stallmeter`` and ``stallmeter:<primary cause>``; no tag is taken
    away.

    Args:
        run: A ``neptune_scale.Run`` or a run of a package with its interface.
        base_namespace: Where everything goes.
        owns_run: True to close the run in `close`.
        patience_s: Most seconds that closing it may take.
    """

    name = "neptune-scale"
    batch_size = 500

    def __init__(
        self, run: Any, *, base_namespace: str = "stallmeter", owns_run: bool = False, patience_s: float = 5.0
    ) -> None:
        super().__init__(run, _describe(run), base_namespace=base_namespace, owns_run=owns_run, patience_s=patience_s)

    @classmethod
    def accepts(cls, candidate: object) -> bool:
        """Whether it has the shape of a run."""
        return all(hasattr(type(candidate), name) for name in ("log_metrics", "log_configs"))

    @classmethod
    def open_run(
        cls,
        project: str | None = None,
        *,
        run_id: str | None = None,
        offline: bool | None = None,
        patience_s: float = 5.0,
    ) -> NeptuneScaleTracker:
        """Start a run; `close` closes it. It records nothing but what it is sent.

        Args:
            project: ``WORKSPACE/PROJECT``; the variable ``NEPTUNE_PROJECT`` by default.
            run_id: An existing run that has it is continued.
            offline: Whether to write to ``./.neptune`` only; by default where the project or ``NEPTUNE_API_TOKEN`` is
                missing.
            patience_s: Most seconds that closing it may take.

        Raises:
            MissingPackageError: Neptune's client is not installed.
            TrackerError: A server was asked for, and the project or token is not known or refused.
            SystemExit: The program is being imported by the client's own process, which must not run it again.
        """
        if importlib.util.find_spec("neptune_scale") is None:
            raise MissingPackageError("neptune-scale", "neptune", "Forwarding to Neptune")
        project, offline = project_of(project, offline)
        run_id = run_id or f"stallmeter-{secrets.token_hex(6)}"
        run = _open(project or OFFLINE_PROJECT, run_id, offline=offline)
        tracker = cls(run, owns_run=True, patience_s=patience_s)
        if not offline:
            tracker.destination = f"{PREFIX}{project} run {run_id}"
        _close_in_time(run, patience_s)
        return tracker

    def send(self, points: Sequence[Point]) -> None:
        """Add points to their series under their own steps and times. Raises as `Tracker.send`.

        What was taken of a sending that failed is not given again. A point whose step Neptune does not take is left out
        with a warning.
        """
        placed, behind = self._series.place(points)
        for point in behind:
            self._leave_out(point, "its step is behind the series")
        self._raise_if_closed()
        for (step, time_s), group in itertools.groupby(placed, lambda one: (one.step, one.time_s)):
            self._log_row(step, time_s, list(group))
        self._series.complete()

    def show(self, page: Page) -> None:
        """Set the configs that changed and, on the final page, add tags and upload files. Raises as `send`.

        A text of an earlier page that this one lacks becomes ``none``: the client deletes nothing.
        """
        self._raise_if_closed()
        values = page_values(page)
        values.update({name: WITHDRAWN for name in self._withdrawn(values) if isinstance(self._shown[name], str)})
        news = {name: value for name, value in values.items() if self._shown.get(name) != value}
        if news:
            with self._asking() as run:
                run.log_configs({f"{self._base}summary/{name}": value for name, value in news.items()})
            self._shown.update(news)
        if page.final:
            self._add_tags(page)
            self._upload(page)

    def close(self) -> None:
        """Close the run if we started it, within ``patience_s``.

        Raises:
            TrackerUnavailableError: Not everything had arrived by then; the message says what sends the rest.
        """
        if not self.owns_run:
            return
        self.owns_run = False
        folder = getattr(self._run, "_storage_directory_path", None)
        offline = getattr(self._run, "_sync_process", None) is None
        with self._asking() as run:
            run.close(timeout=self._patience_s)
        if not offline and folder is not None and Path(folder).exists():
            raise TrackerUnavailableError(
                f"{self.destination} has not got everything; send the rest with: "
                f"neptune sync {Path(folder) / 'run_operations.sqlite3'}"
            )

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """Give the run, and translate what its client raises."""
        try:
            yield self._run
        except _client_errors(self._run) as exc:
            raise _translated(exc) from None

    def _raise_if_closed(self) -> None:
        """A closed run takes everything without a word and keeps nothing."""
        if getattr(self._run, "_is_closing", False):
            raise TrackerError(f"{self.destination} was closed before the training ended; close it afterwards")

    def _log_row(self, step: float, time_s: float, row: Sequence[PlacedPoint]) -> None:
        if not 0 <= step < LARGEST_STEP:
            for one in row:
                self._leave_out(one.point, f"its step is {step}")
        else:
            with self._asking() as run:
                run.log_metrics(
                    {self._path(one.point): one.point.value for one in row},
                    step=step,
                    timestamp=datetime.fromtimestamp(time_s, timezone.utc),
                )
        self._series.accept(row)

    def _add_tags(self, page: Page) -> None:
        with self._asking() as run:
            run.add_tags(tags_of(page))

    def _upload(self, page: Page) -> None:
        files = {self._base + name: str(path.absolute()) for name, path in page.files.items() if path.is_file()}
        if not files:
            return
        try:
            with self._asking() as run:
                run.assign_files(files)
        except (NotImplementedError, AttributeError) as exc:
            _log.warning("%s takes no files: %s", self.destination, exc)


def _open(project: str, run_id: str, *, offline: bool) -> Any:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # The client's own process imports the program; it must not train a second time.
        raise SystemExit('trackers="neptune-scale" needs the guard: if __name__ == "__main__": …')
    import neptune_scale

    try:
        return neptune_scale.Run(
            project=project,
            run_id=run_id,
            mode="offline" if offline else "async",
            enable_console_log_capture=False,
            source_tracking_config=None,
        )
    except _client_errors(neptune_scale.Run) as exc:
        raise _translated(exc) from None
    except ValueError as exc:
        raise TrackerError(f"neptune_scale takes no run {run_id!r} of {project!r}: {exc}") from None


def _close_in_time(run: Any, seconds: float) -> None:
    """Bound what the client does at interpreter exit: its own hook waits for a dead server without end."""
    hook = getattr(run, "_exit_func", None)
    if hook is not None:
        atexit.unregister(hook)
        atexit.register(run.close, timeout=seconds)


def _describe(run: Any) -> str:
    """Say where a run is, as far as its client tells without asking a server."""
    package = type(run).__module__.partition(".")[0]
    project, run_id = getattr(run, "_project", None), getattr(run, "_run_id", None)
    folder = getattr(run, "_storage_directory_path", None)
    name = " ".join([package, "run", *([f"{project}/{run_id}"] if project and run_id else [])])
    offline = folder is not None and getattr(run, "_sync_process", None) is None
    return f"{name}, offline in {folder}" if offline else name


def _client_errors(run: Any) -> tuple[type[BaseException], ...]:
    return (sqlite3.OperationalError, *client_errors(run, "NeptuneScaleError", "NeptuneException"))


def _translated(exc: BaseException) -> TrackerError | TrackerUnavailableError:
    names = {c.__name__ for c in type(exc).__mro__}
    message = client_message(f"{type(exc).__name__}: {exc}")
    missing = {"NeptuneProjectNotProvided", "NeptuneApiTokenNotProvided"}  # retryable by their class, not by nature
    if isinstance(exc, (OSError, sqlite3.OperationalError)) or (
        "NeptuneRetryableError" in names and not names & missing
    ):
        return TrackerUnavailableError(message)
    return TrackerError(message)
