"""Ports for servers of the tests' own."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
OURS = range(20_000 + 1_000 * WORKER, 21_000 + 1_000 * WORKER)
"""Below those of outgoing connections, which could take one of them before somebody listens there."""

_ports = itertools.cycle(random.sample(OURS, len(OURS)))


def free_port() -> int:
    """Return a port that nobody listens on.

    Nobody else gets it for long: neither from here nor in another of the processes that share the tests.
    """
    for port in itertools.islice(_ports, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")
