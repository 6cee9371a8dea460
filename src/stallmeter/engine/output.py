"""Where a run's records go: into its recording, and from there to the trackers."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..delivery.forwarder import Forwarder
from ..machine.procfs import process_age_s, process_space
from ..ranks.deferred import DeferredRecorder
from ..ranks.run_folder import RunFolder, new_name
from ..recording import Header, Recorder, has_recording
from ..records import Event
from ..records.interfaces import Tracker
from ..records.redaction import redact
from ..version import VERSION
from .context import RunContext
from .guard import Guard
from .run_check import mark_recording

AnyRecorder = Recorder | DeferredRecorder
_log = logging.getLogger("stallmeter")


class Output:
    """The recording and the forwarder of one run, opened when it starts.

    Args:
        context: Of the run.
        run_folder: Names the run's folder, the same on all ranks.
        find_trackers: Returns where the recording is forwarded; only rank 0 has any.
        guard: Keeps errors away.
        tell: Takes events for the recording; from any thread.
    """

    def __init__(
        self,
        context: RunContext,
        run_folder: RunFolder,
        find_trackers: Callable[[], Sequence[Tracker]],
        guard: Guard,
        tell: Callable[[Event], None],
    ) -> None:
        self._context = context
        self._run_folder = run_folder
        self._guard = guard
        self._tell = tell
        self._ended = False
        self._find_trackers = find_trackers
        self.trackers: tuple[Tracker, ...] = ()
        """Empty before it is opened: to look for one may open a run of it."""
        self.recorder: AnyRecorder | None = None
        """None when the recording could not be opened, or was given up because the last sample took too long for it."""
        self.forwarder: Forwarder | None = None
        self.folder: Path | None = None
        """Of the recording; None when it could not be opened, and on other ranks until rank 0 has named it."""
        self.given_up = False
        """Whether the recording's folder hung in the last sample: nobody may touch it any more."""

    def open(self, started_s: float, facts: Mapping[str, Any]) -> None:
        """Open the recording and begin to forward it.

        Args:
            started_s: Unix time of the run's start.
            facts: For the recording's header.
        """
        self.trackers = tuple(self._guard("finding the tracker", self._find_trackers) or ())
        self.recorder = self._guard("opening the recording", self._open_recorder, started_s, facts)
        if self.trackers and self.folder is not None:
            self.forwarder = self._guard("forwarding", self._open_forwarder, self.folder)

    def expect_end(self) -> None:
        """The run ends: there is little time left to agree with the other ranks on a folder."""
        self._ended = True
        self._run_folder.shorten_wait()

    def give_up(self) -> None:
        """The folder does not answer. The thread that hangs in it finds no recorder any more when it comes back."""
        self.recorder, self.given_up = None, True

    def _open_recorder(self, started_s: float, facts: Mapping[str, Any]) -> AnyRecorder:
        context, run_folder = self._context, self._run_folder
        run_folder.begin(
            context.framework,
            lambda: new_name(context.recordings, started_s),
            attempt=self._guard.attempt,
            is_over=lambda: self._ended,
        )
        age_s = process_age_s()
        header = Header(
            run_id="",
            rank=context.rank,
            world_size=context.world_size,
            started_s=started_s,
            before_s=None if age_s is None else max(0.0, age_s - (time.time() - started_s)),
            host=socket.gethostname(),
            pid=os.getpid(),
            process_space=process_space(),
            version=VERSION,
            framework=context.framework,
            settings=facts,
        )
        name = run_folder.name()
        return (
            DeferredRecorder(run_folder, partial(self._open_at, header))
            if name is None
            else self._open_at(header, name)
        )

    def _open_at(self, header: Header, name: str) -> Recorder:
        """Open the recording in a folder of this name: on the sampler thread where rank 0 has named it late."""
        run_folder, folder = self._run_folder, self._context.recordings / name
        if has_recording(folder, header.rank):
            name = run_folder.use_other_folder(
                f"{name} has a recording of rank {header.rank}: two processes have the same rank"
            )
            folder = folder.with_name(name)
        recorder = Recorder(folder, replace(header, run_id=name.rpartition("-")[2]))
        self.folder = folder
        if header.rank == 0:
            mark_recording(folder)
        if run_folder.why_own_folder:
            self._tell(Event(time_s=time.time(), name="a folder of its own", detail=run_folder.why_own_folder))
            _log.warning(
                "stallmeter: rank %d records into %s, apart from rank 0: %s",
                header.rank,
                folder,
                run_folder.why_own_folder,
            )
        return recorder

    def _open_forwarder(self, folder: Path) -> Forwarder:
        guard = self._guard
        return Forwarder(
            folder, self._context.rank, self.trackers, guard=guard, let_go=guard.attempt, on_problem=self._on_problem
        )

    def _on_problem(self, tracker: str, message: str) -> None:
        self._tell(Event(time_s=time.time(), name=f"{tracker} stopped", detail=redact(message)[:500]))
        _log.warning("stallmeter: forwarding to %s stopped: %s", tracker, redact(message))
