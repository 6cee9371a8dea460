"""The run's append-only file: written by one thread, read while it grows and after a crash.

A recording is a folder with files ``rank<R>.<part>.jsonl``. Each line is one JSON array: ``[kind, values…]`` or
``[kind, {…}]``. Every part begins with a header line, so each can be read alone; it gets its name when that line is
written. A last line without its newline is a torn write and is ignored. Nothing is ever rewritten.
"""

from __future__ import annotations

from .files import as_typed, find_recording, is_recording, ranks, write_atomically, write_output
from .format import SCHEMA, Header, decode, encode
from .reader import Position, Reader, has_recording
from .writer import Recorder

__all__ = [
    "SCHEMA",
    "Header",
    "Position",
    "Reader",
    "Recorder",
    "as_typed",
    "decode",
    "encode",
    "find_recording",
    "has_recording",
    "is_recording",
    "ranks",
    "write_atomically",
    "write_output",
]
