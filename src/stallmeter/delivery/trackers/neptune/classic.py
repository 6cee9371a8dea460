"""Forwards to a run of the Neptune 1.x client: series in bulk, fields, tags and files."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....errors import MissingPackageError, TrackerError, TrackerUnavailableError
from ....records.interfaces import Page, Point
from ...messages import client_message
from .fields import page_values
from .run import NeptuneRun, client_errors, project_of, tags_of
from .substeps import PlacedPoint

PREFIX = "neptune://"
"""Begins the destination of a run on a server: ``neptune://WORKSPACE/PROJECT run ID``."""

POINTS_PER_CALL = 100
"""The client makes one operation of so many values: each call is taken or refused as a whole."""

RUN_ID_CHARACTERS = 36
"""Longest custom run id that Neptune keeps."""

_QUIET = {
    "capture_stdout": False,
    "capture_stderr": False,
    "capture_hardware_metrics": False,
    "capture_traceback": False,
    "git_ref": False,
    "source_files": [],
}
"""A run of ours holds what we measured and nothing else."""

_PASSING = frozenset({"NeptuneConnectionLostException", "InternalServerError", "CannotResolveHostname"})
_INCONSISTENT = frozenset({"MetadataInconsistency", "TypeDoesNotSupportAttributeException"})
_log = logging.getLogger("stallmeter")


class NeptuneTracker(NeptuneRun):
    """Forwards to one run, which somebody else started and will stop unless it was made by `open_run`.

    Step metrics go below ``base_namespace``, hardware below ``base_namespace/hardware``, single values below
    ``base_namespace/summary``. The run gets the tags ``stallmeter`` and ``stallmeter:<primary cause>``; no tag is taken
    away.

    Args:
        run: A run of ``neptune`` 1.x or of a package with its interface, or a namespace of one (``run["training"]``).
        base_namespace: Where everything goes, relative to ``run``.
        owns_run: True to stop the run in `close`.
        patience_s: Most seconds that stopping it may take. An answer that comes later than this is noted and reported
            as none, so that the forwarder can see whether there is still time.
    """

    name = "neptune"
    batch_size = 1000

    def __init__(
        self, run: Any, *, base_namespace: str = "stallmeter", owns_run: bool = False, patience_s: float = 5.0
    ) -> None:
        destination = "" if run is None else _describe(run)
        super().__init__(run, destination, base_namespace=base_namespace, owns_run=owns_run, patience_s=patience_s)
        self._open: Callable[[], Any] | None = None

    @classmethod
    def accepts(cls, candidate: object) -> bool:
        """Whether it has the shape of a run, or of a namespace of one."""
        kind = type(candidate)
        methods = ("sync", "wait"), ("get_root_object",)
        return hasattr(kind, "__getitem__") and any(all(hasattr(kind, m) for m in group) for group in methods)

    @classmethod
    def from_logger(cls, logger: object) -> NeptuneTracker | None:
        """Return a tracker for the run of Lightning's ``NeptuneLogger``, below the logger's prefix.

        Lightning had one until 2.6.1.

        Returns:
            None when it is another logger, or on a rank that logs nothing.
        """
        if "NeptuneLogger" not in {c.__name__ for c in type(logger).__mro__}:
            return None
        neptune_logger: Any = logger
        run = neptune_logger.experiment
        if not cls.accepts(run):
            return None
        return cls(run, base_namespace=f"{getattr(logger, '_prefix', '') or ''}/stallmeter")

    @classmethod
    def open_run(
        cls,
        project: str | None = None,
        *,
        run_id: str | None = None,
        offline: bool | None = None,
        patience_s: float = 5.0,
    ) -> NeptuneTracker:
        """Start a run; `close` stops it. It records nothing but what it is sent.

        A run on a server is started at the first use, because the client waits up to ten minutes for a server that does
        not answer. It is synchronous: what was sent is there, and no thread of the client holds up forks.

        Args:
            project: ``WORKSPACE/PROJECT``; the variable ``NEPTUNE_PROJECT`` by default.
            run_id: Custom id; an existing run that has it is continued.
            offline: Whether to write to ``./.neptune`` only; by default where the project or ``NEPTUNE_API_TOKEN`` is
                missing.
            patience_s: As for the tracker.

        Raises:
            MissingPackageError: Neptune's client is not installed.
            TrackerError: A server was asked for, and the project or token is not known.
        """
        if importlib.util.find_spec("neptune") is None:
            raise MissingPackageError("neptune", "neptune", "Forwarding to Neptune")
        project, offline = project_of(project, offline)
        if offline:
            return cls(_init_run(mode="offline"), owns_run=True, patience_s=patience_s)
        run_id = (run_id or f"stallmeter-{secrets.token_hex(6)}")[:RUN_ID_CHARACTERS]
        tracker = cls(None, owns_run=True, patience_s=patience_s)
        tracker.destination = f"{PREFIX}{project} run {run_id}"
        tracker._open = functools.partial(_init_run, mode="sync", project=project, custom_run_id=run_id)
        return tracker

    def send(self, points: Sequence[Point]) -> None:
        """Add points to their series under their own steps and times. Raises as `Tracker.send`.

        What was taken of a sending that failed is not given again. A point whose series Neptune cannot hold (its path
        is something else in the run, its step is behind) is left out with a warning.
        """
        placed, behind = self._series.place(points)
        for point in behind:
            self._leave_out(point, "its step is behind the series")
        by_path: dict[str, list[PlacedPoint]] = {}
        for one in placed:
            by_path.setdefault(self._path(one.point), []).append(one)
        refused = [self._extend(path, series) for path, series in by_path.items()]
        if len(refused) > 1 and all(refused):
            raise TrackerError(f"the run takes no series below {self._base!r}: {refused[0]}")
        self._series.complete()

    def show(self, page: Page) -> None:
        """Set the fields that changed and, on the final page, add tags and upload files. Raises as `send`.

        A field of an earlier page that this one lacks is deleted.
        """
        values = page_values(page)
        for name in self._withdrawn(values):
            self._delete(f"{self._base}summary/{name}")
            del self._shown[name]
        for name, value in values.items():
            if self._shown.get(name) != value:
                with self._asking() as home:
                    home[f"{self._base}summary/{name}"] = value
                self._shown[name] = value
        if page.final:
            self._add_tags(page)
            for name, path in page.files.items():
                if path.is_file():
                    self._upload(name, path)

    def close(self) -> None:
        """Stop the run if we started it, within ``patience_s``."""
        if self.owns_run and self._run is not None:
            self.owns_run = False
            with self._asking() as run:
                run.stop(seconds=self._patience_s)

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """Give the run, and translate what its client raises."""
        try:
            if self._run is None and self._open is not None:
                began = time.monotonic()
                self._run = self._open()
                _stop_in_time(self._run, self._patience_s)
                self._raise_if_late(began)
            yield self._run
        except client_errors(self._run, "NeptuneException") as exc:
            raise _translated(exc) from None

    def _raise_if_late(self, began: float) -> None:
        spent_s = time.monotonic() - began
        if spent_s > self._patience_s:
            raise TrackerUnavailableError(f"{self.destination} has answered after {spent_s:.0f} s only")

    def _extend(self, path: str, series: Sequence[PlacedPoint]) -> str | None:
        """Add to one series; return why it was refused."""
        refusal = None
        for start in range(0, len(series), POINTS_PER_CALL):
            part = series[start : start + POINTS_PER_CALL]
            began = time.monotonic()
            try:
                with self._asking() as home:
                    home[path].extend(
                        [one.point.value for one in part],
                        steps=[one.step for one in part],
                        timestamps=[one.time_s for one in part],
                    )
            except _InconsistentError as exc:
                refusal = str(exc)
                self._leave_out(part[0].point, refusal)
            self._series.accept(part)
            self._raise_if_late(began)
        return refusal

    def _delete(self, path: str) -> None:
        with contextlib.suppress(_InconsistentError), self._asking() as home:
            home.pop(path)  # unless somebody else has

    def _add_tags(self, page: Page) -> None:
        with self._asking() as home:
            _root(home)["sys/tags"].add(tags_of(page))

    def _upload(self, name: str, path: Path) -> None:
        try:
            with self._asking() as home:
                home[self._base + name].upload(str(path.absolute()))
        except NotImplementedError:
            if "upload" not in self._warned:
                self._warned.add("upload")
                _log.warning("%s takes no files; the reports are in %s", self.destination, path.parent)


class _InconsistentError(TrackerError):
    """The path is already something else in this run, or a server refused these points."""


def _init_run(**options: Any) -> Any:
    import neptune

    return neptune.init_run(**_QUIET, **options)


def _stop_in_time(run: Any, seconds: float) -> None:
    """Bound what the client does at interpreter exit: its own hook waits for a dead server without end."""
    hook = getattr(run, "_shutdown_hook", None)
    if hook is not None:
        atexit.unregister(hook)
        atexit.register(run.stop, seconds=seconds)


def _root(run: Any) -> Any:
    return run.get_root_object() if hasattr(type(run), "get_root_object") else run


def _describe(run: Any) -> str:
    """Say where a run is, as far as its client tells without asking a server."""
    root = _root(run)
    package = type(root).__module__.partition(".")[0]
    names = [getattr(root, f"_{name}", None) for name in ("workspace", "project_name", "sys_id")]
    processor = getattr(root, "_op_processor", None)
    # Version 1.8 has the folder one level deeper.
    folder = getattr(processor, "data_path", getattr(getattr(processor, "_operation_storage", None), "data_path", None))
    if folder is not None and "offline" in Path(folder).parts:
        return f"{package} offline run in {Path(folder).absolute()}"
    return " ".join([package, "run", *(["/".join(map(str, names))] if all(names) else [])])


def _translated(exc: BaseException) -> TrackerError | TrackerUnavailableError:
    names = {c.__name__ for c in type(exc).__mro__}
    message = client_message(f"{type(exc).__name__}: {exc}")
    if names & _INCONSISTENT:
        return _InconsistentError(message)
    if names & _PASSING or isinstance(exc, OSError):
        return TrackerUnavailableError(message)
    return TrackerError(message)
