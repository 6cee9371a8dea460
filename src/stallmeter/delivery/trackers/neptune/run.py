"""What the trackers of both clients have in common."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection
from typing import Any

from ....errors import TrackerError
from ....records.interfaces import Page, Point
from .fields import TAG_FIELDS, Value
from .substeps import Substeps

_FOLDER = {"steps": "", "hardware": "hardware/"}
_log = logging.getLogger("stallmeter")


class NeptuneRun:
    """A run of one of the clients, and where in it everything goes.

    Args:
        run: The client's.
        destination: What to call it.
        base_namespace: Where everything goes, relative to ``run``.
        owns_run: True to end the run in `close`.
        patience_s: Most seconds that a call which waits for the server may take.
    """

    def __init__(self, run: Any, destination: str, *, base_namespace: str, owns_run: bool, patience_s: float) -> None:
        self.destination = destination
        self.owns_run = owns_run
        self.borrowed = not owns_run
        self._run = run
        self._base = "".join(f"{part}/" for part in base_namespace.split("/") if part)
        self._patience_s = patience_s
        self._series = Substeps()
        self._shown: dict[str, Value] = {}
        self._warned: set[str] = set()

    def _path(self, point: Point) -> str:
        return self._base + _FOLDER[point.group] + point.key

    def _withdrawn(self, values: Collection[str]) -> list[str]:
        """Return the fields of an earlier page of ours that a page with these no longer has."""
        return sorted((TAG_FIELDS & self._shown.keys()) - set(values))

    def _leave_out(self, point: Point, why: str) -> None:
        path = self._path(point)
        if path not in self._warned:
            self._warned.add(path)
            _log.warning("Neptune cannot take a point of %r, which is left out there: %s", path, why)


def tags_of(page: Page) -> list[str]:
    """Return the tags that a page gives a run: ours, and the primary cause."""
    primary = page.tags.get("stallmeter.primary")
    return ["stallmeter", *([f"stallmeter:{primary}"] if primary else [])]


def project_of(project: str | None, offline: bool | None) -> tuple[str | None, bool]:
    """Return a new run's project, and whether it is to be offline.

    Args:
        project: ``WORKSPACE/PROJECT``; the variable ``NEPTUNE_PROJECT`` by default.
        offline: None for offline where the project or ``NEPTUNE_API_TOKEN`` is missing.

    Raises:
        TrackerError: A server was asked for, and the project or token is not known.
    """
    project = project or os.environ.get("NEPTUNE_PROJECT")
    known = bool(project and os.environ.get("NEPTUNE_API_TOKEN"))
    if offline is False and not known:
        raise TrackerError("set NEPTUNE_API_TOKEN, and NEPTUNE_PROJECT or a project, to send to a Neptune server")
    return project, not known if offline is None else offline


def client_errors(run: Any, *names: str) -> tuple[type[BaseException], ...]:
    """Return what a run's package raises: OSError, and the base classes of its own errors.

    Args:
        run: A run, the class of one, or None for the package ``neptune`` itself.
        names: Of the base classes in the package's ``exceptions`` modules.
    """
    kind = run if isinstance(run, type) else type(run)
    parts = ("neptune" if run is None else kind.__module__).split(".")
    modules = [sys.modules.get(".".join([*parts[:n], "exceptions"])) for n in range(1, len(parts) + 1)]
    bases = [getattr(module, name, None) for module in modules for name in names]
    return (OSError, *(base for base in bases if isinstance(base, type)))
