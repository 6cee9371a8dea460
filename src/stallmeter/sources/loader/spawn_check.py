"""Whether workers can be had that are not forked: the dataset is sent to one process before the training depends on it.

``spawn`` and ``forkserver`` (Python's default on Linux from 3.14 on) send dataset and functions through pickle to a
process that imports the program's file again. That a dataset survives it shows only in such a process; that importing
the file would train again must be known before one is started.
"""

from __future__ import annotations

import ast
import sys
import threading
from pathlib import Path
from typing import Any

from ...machine.frames import lines_of

START_TIMEOUT_S = 60.0
"""Most time for the one process to start; most of it imports torch."""


STDERR_TIMEOUT_S = 10.0
"""Most time for a process that failed to say why."""


def why_no_new_process(method: str) -> str | None:
    """Return why the program must not be imported by a worker, None when it may.

    Args:
        method: ``spawn`` or ``forkserver``, for the message.
    """
    if not _trains_when_imported():
        return None
    return (
        f"workers would start by {method}, which runs the program's file again: "
        'call the training below `if __name__ == "__main__":`'
    )


def why_no_worker(loader: Any, method: str) -> str | None:
    """Start one process as a worker of the loader would be started, and return why it failed, None when it did not.

    Args:
        loader: A ``torch.utils.data.DataLoader``.
        method: How its workers would start.
    """
    from torch import multiprocessing

    context = loader.multiprocessing_context or multiprocessing
    answers, answer = context.Pipe(duplex=False)
    sent = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
    process = context.Process(target=_report_started, args=(answer, *sent), daemon=True)
    began = f"workers would start by {method}, and a first one"
    try:
        process.start()
    except Exception as exc:  # noqa: BLE001 - pickle runs the dataset's own code, which may raise anything
        return f"{began} cannot be sent the dataset ({type(exc).__name__}: {exc})"
    finally:
        answer.close()
    try:
        if not answers.poll(START_TIMEOUT_S):
            return f"{began} took more than {START_TIMEOUT_S:.0f} s"
        answers.recv()
    except (EOFError, OSError):
        process.join(STDERR_TIMEOUT_S)  # the pipe is closed before the error is printed
        return f"{began} did not take the dataset: it said why on stderr"
    finally:
        answers.close()
        process.terminate()
        process.join()
    return None


def _report_started(answer: Any, *_: object) -> None:
    """Run in the process, when all that was sent is there."""
    answer.send(None)


def _trains_when_imported() -> bool:
    """Whether the program's file, imported under another name than ``__main__``, would come to where it is now."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    name = getattr(getattr(main, "__spec__", None), "name", None) or ""
    if path is None or name == "__main__" or name.endswith(".__main__"):
        return False  # nothing is imported again
    line = None
    for code, at, names in lines_of(threading.main_thread().ident or 0):
        if code.co_name == "<module>" and names is vars(main):
            line = at
            break
    if line is None:  # the file has come to its end; what it started may go on in a thread
        return threading.current_thread() is not threading.main_thread()
    try:
        body = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return True
    return not any(_asks_for_main(s) for s in body if s.lineno <= line <= (s.end_lineno or s.lineno))


def _asks_for_main(statement: ast.stmt) -> bool:
    names = ast.walk(statement.test) if isinstance(statement, ast.If) else ()
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in names)
