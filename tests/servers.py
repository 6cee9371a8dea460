"""Real tracking servers on loopback, and a server that answers wrongly, for tests and screenshots."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .ports import free_port


class MlflowServer:
    """``mlflow server`` with one worker on a sqlite database, in its own process group.

    Args:
        folder: Holds the database, the artifacts and the server's log; kept over a restart.
        database: URI of another database.
    """

    def __init__(self, folder: Path, database: str | None = None) -> None:
        self.folder = folder
        self.database = database or f"sqlite:///{folder / 'server.db'}"
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> MlflowServer:
        """Start it; with ``wait``, return when it answers."""
        environment = {
            **os.environ,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes that no test needs
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "mlflow",
                    "server",
                    *("--backend-store-uri", self.database),
                    *("--artifacts-destination", str(self.folder / "artifacts")),
                    *("--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        if wait:
            self.wait()
        return self

    def wait(self, seconds: float = 120.0) -> None:
        """Wait until the server answers."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"mlflow server ended: {(self.folder / 'server.log').read_text()[-2000:]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=1):
                return
            time.sleep(0.1)
        raise TimeoutError(f"mlflow server did not answer: {(self.folder / 'server.log').read_text()[-2000:]}")

    def artifact(self, run_id: str, path: str) -> bytes:
        """Return a file of a run, as the UI gets it."""
        query = urllib.parse.urlencode({"path": path, "run_uuid": run_id})
        with urllib.request.urlopen(f"{self.uri}/get-artifact?{query}", timeout=30) as answer:
            content: bytes = answer.read()
        return content

    def kill(self) -> None:
        """End the server and everything that it started, at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class FaultServer:
    """Answers every request with one status and body, or takes it and never answers."""

    def __init__(self, status: int = 500, body: str = "{}", *, silent: bool = False) -> None:
        self.status = status
        self.body = body
        self.requests: list[str] = []
        self._release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append(f"{self.command} {self.path}")
                if silent:
                    outer._release.wait(60)
                    return
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body.encode())

            do_GET = do_POST = do_PUT = _handle

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FaultServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._release.set()
        self._server.shutdown()
        self._server.server_close()


class FaultProxy:
    """Stands before a real server and fails as it is told to: faults begin and end in the middle of a run.

    Args:
        target: ``host:port`` of the real server.
    """

    def __init__(self, target: str) -> None:
        self.fault: str | int = "none"
        """``none``; ``hung``: takes requests and never answers; ``lost``: passes them on and loses the answers;
        ``slow``: takes its time; a number: answers with that status."""
        self.requests: list[str] = []
        self._release = threading.Event()
        self._address = ("127.0.0.1", free_port())
        self.uri = f"http://127.0.0.1:{self._address[1]}"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append(f"{self.command} {self.path}")
                fault = outer.fault
                if fault == "hung":
                    outer._release.wait(60)
                    return
                if fault == "slow":
                    outer._release.wait(0.3)
                if isinstance(fault, int):
                    self._answer(fault, "text/html", b"<html>no</html>")
                    return
                status, kind, content = self._forward(body)
                if fault == "lost":
                    self.connection.close()
                    return
                self._answer(status, kind, content)

            def _forward(self, body: bytes) -> tuple[int, str, bytes]:
                connection = http.client.HTTPConnection(target, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                connection.request(self.command, self.path, body, headers)
                response = connection.getresponse()
                content = response.read()
                connection.close()
                return response.status, response.headers.get("Content-Type", ""), content

            def _answer(self, status: int, kind: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = _handle

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                """Clients that have left are part of the plan."""

        self._make = lambda: Server(self._address, Handler)
        self._server: ThreadingHTTPServer | None = None

    def listen(self) -> None:
        """Take connections."""
        self._server = self._make()
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse connections."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def heal(self) -> None:
        """Work again."""
        self.fault = "none"
        self._release.set()
        if self._server is None:
            self.listen()

    def __enter__(self) -> FaultProxy:
        self.listen()
        return self

    def __exit__(self, *exc: object) -> None:
        self._release.set()
        self.refuse()
