"""What runs beside the job and is no part of it: busy neighbours and a slow store. Each ends with its owner.

python -m benchmarks.faults.outside neighbour --cpus 0,1
python -m benchmarks.faults.outside store --bytes-per-second 4000000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

LIFETIME_S = 300.0
CHUNK = 16_384


def neighbour(after: Path | None = None) -> None:
    """Keep one CPU busy until the owner goes away.

    Args:
        after: Wait until this file is there: what the job does before it trains need not take longer.
    """
    owner, until = os.getppid(), time.monotonic() + LIFETIME_S
    while os.getppid() == owner and time.monotonic() < until:
        if after is not None and not after.exists():
            time.sleep(0.05)
            continue
        for _ in range(200):
            sum(range(10_000))


class Throttle:
    """Hands out a number of bytes a second to all who ask."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def take(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        with self._lock:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + size / self.bytes_per_s
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


def store(bytes_per_s: float) -> None:
    """Serve objects of any size on a loopback port, which is printed, until the owner goes away."""
    throttle = Throttle(bytes_per_s)
    chunk = b"x" * CHUNK

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            size = int(parse_qs(urlsplit(self.path).query)["bytes"][0])
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            while size > 0:
                part = min(size, CHUNK)
                throttle.take(part)
                self.wfile.write(chunk[:part])
                size -= part

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A reader that left is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    owner, until = os.getppid(), time.monotonic() + LIFETIME_S
    while os.getppid() == owner and time.monotonic() < until:
        time.sleep(0.5)


@contextmanager
def started(
    neighbours: int, bytes_per_s: float, cpus: Sequence[int], after: Path | None = None
) -> Iterator[tuple[list[int], int | None]]:
    """Have neighbours and a store as long as the block lasts; gives their process ids and the store's port."""
    with ExitStack() as stack:
        port = None
        pin = ["--cpus", ",".join(map(str, cpus))]
        wait = [] if after is None else ["--after", str(after)]
        pids = [_start(stack, ["neighbour", *pin, *wait]).pid for _ in range(neighbours)]
        if bytes_per_s:
            process = _start(stack, ["store", *pin, "--bytes-per-second", str(bytes_per_s)])
            assert process.stdout is not None
            port = int(process.stdout.readline())
            pids.append(process.pid)
        yield pids, port


def _start(stack: ExitStack, arguments: Sequence[str]) -> subprocess.Popen[str]:
    # A session of its own: no signal, no scheduling group and no process tree is shared with the job.
    process = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["neighbour", "store"])
    parser.add_argument("--cpus", type=lambda text: [int(c) for c in text.split(",")])
    parser.add_argument("--after", type=Path)
    parser.add_argument("--bytes-per-second", type=float, default=1e6)
    arguments = parser.parse_args()
    if arguments.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, arguments.cpus)
    if arguments.what == "neighbour":
        neighbour(arguments.after)
    else:
        store(arguments.bytes_per_second)


if __name__ == "__main__":
    main()
