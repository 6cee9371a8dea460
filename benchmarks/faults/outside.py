"""What runs beside the job and is no part of it: busy neighbours and a store. Each ends with its owner.

python -m benchmarks.faults.outside neighbour --cpus 0,1 --share 0.7
python -m benchmarks.faults.outside store --bytes-per-second 4000000
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

LIFETIME_S = 300.0
STORE_LIFETIME_S = 6 * 3600.0
CHUNK = 16_384
PERIOD_S = 0.04


def neighbour(share: float) -> None:
    """Keep a share of one CPU busy until the owner goes away."""
    owner, until = os.getppid(), time.monotonic() + LIFETIME_S
    while os.getppid() == owner and time.monotonic() < until:
        rest = time.perf_counter() + share * PERIOD_S
        while time.perf_counter() < rest:
            sum(range(2_000))
        time.sleep((1.0 - share) * PERIOD_S)


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
    """Serve objects of any size, late if so asked, on a loopback port, which is printed."""
    throttle = Throttle(bytes_per_s)
    chunk = b"x" * CHUNK

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            size = int(query["bytes"][0])
            late = float(query.get("wait", ["0"])[0])
            if late:
                time.sleep(late)
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            while size > 0:
                part = min(size, CHUNK)
                if not late:
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
    owner, until = os.getppid(), time.monotonic() + STORE_LIFETIME_S
    while os.getppid() == owner and time.monotonic() < until:
        time.sleep(0.5)


@contextmanager
def neighbours(busy_cpus: float, cpus: Sequence[int]) -> Iterator[list[int]]:
    """Have neighbours as long as the block lasts; gives their process ids."""
    with ExitStack() as stack:
        count = math.ceil(busy_cpus)
        pin = ["--cpus", ",".join(map(str, cpus))]
        share = ["--share", str(busy_cpus / count)] if count else []
        yield [_start(stack, ["neighbour", *pin, *share]).pid for _ in range(count)]


@contextmanager
def opened_store(bytes_per_s: float, cpus: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Have a store as long as the block lasts; gives its process id and its port."""
    with ExitStack() as stack:
        arguments = ["store", "--cpus", ",".join(map(str, cpus)), "--bytes-per-second", str(bytes_per_s)]
        process = _start(stack, arguments)
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())


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
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--bytes-per-second", type=float, default=1e6)
    arguments = parser.parse_args()
    if arguments.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, arguments.cpus)
    if arguments.what == "neighbour":
        neighbour(arguments.share)
    else:
        store(arguments.bytes_per_second)


if __name__ == "__main__":
    main()
