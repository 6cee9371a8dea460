"""Ports for servers of the tests' own."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """Return a port below those of outgoing connections: one of these could take it before somebody listens there."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")
