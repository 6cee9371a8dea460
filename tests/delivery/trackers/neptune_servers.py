"""Stand-ins on loopback for the servers that Neptune's two clients talk to.

They answer as much as the real clients ask for and keep what arrives. They show what a client sends; what a server
makes of it, and how it looks there, nobody can show any more.
"""

from __future__ import annotations

import base64
import functools
import json
import threading
import time
import uuid
from atexit import register, unregister
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlparse

PROJECT = "space/project"
Json = dict[str, Any]


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: bytes


@dataclass
class Answer:
    body: bytes | Json | list[Any] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class LoopbackServer:
    """Hands each request to `answer`; while `hangs` is set, takes requests and does not answer.

    Before it ends it ends the clients' runs that are still open: at the exit of the interpreter they would wait for it.
    """

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.refuses_with: int | None = None
        self.requests: list[str] = []
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or head and body of an answer are 40 ms apart

            def do_GET(self) -> None:
                self._handle()

            def do_POST(self) -> None:
                self._handle()

            def do_PUT(self) -> None:
                self._handle()

            def _handle(self) -> None:
                url = urlparse(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                outer.requests.append(f"{self.command} {url.path}")
                while outer.hangs.is_set():
                    time.sleep(0.02)
                if outer.refuses_with is not None:
                    answer = Answer({"message": "no", "code": outer.refuses_with}, outer.refuses_with)
                else:
                    with outer.lock:
                        answer = outer.answer(Request(self.command, url.path, query, body))
                self._send(answer)

            def _send(self, answer: Answer) -> None:
                plain = isinstance(answer.body, bytes)
                content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/x-protobuf" if plain else "application/json")
                self.send_header("Content-Length", str(len(content)))
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._exits: list[functools.partial[Any]] = []
        self._noting_exits = mock.patch("atexit.register", self._note_exit)

    def _note_exit(self, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        if type(getattr(hook, "__self__", None)).__module__.startswith("neptune"):
            self._exits.append(functools.partial(hook, *args, **kwargs))
        return register(hook, *args, **kwargs)

    def answer(self, request: Request) -> Answer:
        raise NotImplementedError

    @property
    def token(self) -> str:
        """What NEPTUNE_API_TOKEN must be to come here."""
        content = {"api_address": self.url, "api_url": self.url, "api_key": "secret-key"}
        return base64.b64encode(json.dumps(content).encode()).decode()

    def access_token(self) -> str:
        import jwt

        claims = {"exp": time.time() + 3600, "azp": "neptune-cli", "iss": self.url}
        return jwt.encode(claims, "k" * 32, algorithm="HS256")

    def __enter__(self) -> LoopbackServer:
        self._thread.start()
        self._noting_exits.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._noting_exits.stop()
        self.hangs.clear()
        self.refuses_with = None
        for leave in reversed(self._exits):
            unregister(leave.func)
            leave()
        self._server.shutdown()
        self._server.server_close()


# -- 1.x: a REST interface that describes itself ----------------------------------------------------------------------


@dataclass
class Run1:
    id: str
    short_id: str
    custom_id: str | None
    operations: list[Json] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def series(self, path: str) -> list[tuple[float, float, int]]:
        """Step, value and time in ms of each point."""
        return [
            (e["step"], e["value"], e["timestampMilliseconds"])
            for operation in self.operations
            if operation["path"] == path and "logFloats" in operation
            for e in operation["logFloats"]["entries"]
        ]

    def paths(self, kind: str) -> set[str]:
        return {o["path"] for o in self.operations if kind in o}

    def values(self) -> dict[str, Any]:
        """The last value assigned to each field."""
        kinds = ("assignString", "assignFloat", "assignInt")
        return {o["path"]: o[kind]["value"] for o in self.operations for kind in kinds if kind in o}

    def tags(self) -> list[str]:
        found: list[str] = []
        for operation in self.operations:
            if operation["path"] == "sys/tags":
                found += operation.get("insertStrings", {}).get("values", [])
        return found


def _object(**properties: str | Json) -> Json:
    return {
        "type": "object",
        "properties": {k: {"type": v} if isinstance(v, str) else v for k, v in properties.items()},
    }


def _ref(name: str) -> Json:
    return {"$ref": f"#/definitions/{name}"}


def _list_of(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


def _operation(
    method: str, name: str, query: tuple[str, ...] = (), body: Json | None = None, gives: Json | None = None
) -> Json:
    parameters: list[Json] = [
        {"name": q, "in": "header" if q.startswith("X-") else "query", "type": "string", "required": False}
        for q in query
    ]
    if body is not None:
        parameters.append(body)
    response = {"description": "", **({} if gives is None else {"schema": gives})}
    return {method: {"operationId": name, "tags": ["api"], "parameters": parameters, "responses": {"200": response}}}


class Neptune1Server(LoopbackServer):
    """For the ``neptune`` 1.x client: runs, operations and uploads."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, Run1] = {}
        self._answers: dict[str, Callable[[Request], Answer]] = {
            "/api/backend/swagger.json": lambda _: Answer(self._backend()),
            "/api/leaderboard/swagger.json": lambda _: Answer(self._leaderboard()),
            "/api/backend/v1/clients/config": lambda _: Answer(
                {"apiUrl": self.url, "applicationUrl": self.url, "pyLibVersions": {"minCompatibleVersion": "0.1.0"}}
            ),
            "/api/backend/v1/authorization/oauth-token": lambda _: Answer(
                {"accessToken": self.access_token(), "refreshToken": self.access_token(), "username": "me"}
            ),
            "/api/backend/v1/projects/get": lambda _: Answer(
                {"id": "p", "name": "project", "organizationName": "space", "projectKey": "PRO", "version": 2}
            ),
            "/api/leaderboard/v1/attributes/experiments": self._create,
            "/api/leaderboard/v1/attributes/operations": self._execute,
            "/api/leaderboard/v1/attributes/list": lambda _: Answer({"attributes": []}),
            "/api/leaderboard/v1/ping": lambda _: Answer({}),
        }

    @property
    def run(self) -> Run1:
        (run,) = self.runs.values()
        return run

    def answer(self, request: Request) -> Answer:
        if request.path in self._answers:
            return self._answers[request.path](request)
        if request.path.endswith("/openid-connect/token"):
            token = self.access_token()
            return Answer({"access_token": token, "refresh_token": token, "expires_in": 3600, "token_type": "Bearer"})
        if request.path.startswith("/api/leaderboard/v1/up/"):
            name = f"{request.query['attribute']}|{request.query.get('ext', '')}"
            self.runs[request.query["experimentIdentifier"]].files[name] = request.body
            return Answer({"errors": []})
        return Answer({"message": request.path}, 404)

    def _create(self, request: Request) -> Answer:
        custom_id = json.loads(request.body).get("customId")
        run = next((r for r in self.runs.values() if custom_id and r.custom_id == custom_id), None)
        if run is None:
            run = Run1(str(uuid.uuid4()), f"PRO-{len(self.runs) + 1}", custom_id)
            self.runs[run.id] = run
        return Answer(
            {
                "id": run.id,
                "shortId": run.short_id,
                "organizationName": "space",
                "projectName": "project",
                "trashed": False,
                "type": "run",
                "organizationId": "o",
                "projectId": "p",
            }
        )

    def _execute(self, request: Request) -> Answer:
        self.runs[request.query["experimentId"]].operations.extend(json.loads(request.body))
        return Answer([])

    def _describe(self, paths: Json, definitions: Json) -> Json:
        return {
            "swagger": "2.0",
            "info": {"title": "x", "version": "1"},
            "host": self.url.partition("//")[2],
            "schemes": ["http"],
            "basePath": "/",
            "consumes": ["application/json"],
            "produces": ["application/json"],
            "paths": paths,
            "definitions": definitions,
        }

    def _backend(self) -> Json:
        token = ("X-Neptune-Api-Token",)
        return self._describe(
            {
                "/api/backend/v1/clients/config": _operation(
                    "get", "getClientConfig", (*token, "alpha"), gives=_ref("Config")
                ),
                "/api/backend/v1/authorization/oauth-token": _operation(
                    "get", "exchangeApiToken", token, gives=_ref("Tokens")
                ),
                "/api/backend/v1/projects/get": _operation(
                    "get", "getProject", ("projectIdentifier",), gives=_ref("Project")
                ),
            },
            {
                "Config": _object(apiUrl="string", applicationUrl="string", pyLibVersions=_ref("Versions")),
                "Versions": _object(minCompatibleVersion="string"),
                "Tokens": _object(accessToken="string", refreshToken="string", username="string"),
                "Project": _object(
                    id="string", name="string", organizationName="string", projectKey="string", version="integer"
                ),
            },
        )

    def _leaderboard(self) -> Json:
        api = "/api/leaderboard/v1"
        anything = {"name": "experimentCreationParams", "in": "body", "schema": {"type": "object"}}
        operations = {"name": "operations", "in": "body", "schema": {"type": "array", "items": {"type": "object"}}}
        where = ("experimentIdentifier", "attribute", "ext", "subPath", "totalLength", "uploadId")
        names = {
            "up/single": "fileAtomUpload",
            "up/start": "fileAtomMultipartUploadStart",
            "up/part": "fileAtomMultipartUploadPart",
            "up/fin": "fileAtomMultipartUploadFinish",
            "ups/single": "fileSetFileUpload",
            "ups/start": "fileSetFileMultipartUploadStart",
            "ups/part": "fileSetFileMultipartUploadPart",
            "ups/fin": "fileSetFileMultipartUploadFinish",
            "ups/tar": "uploadFileSetAttributeTar",
        }
        uploads = {
            f"{api}/{path}": _operation("post", name, where, gives=_ref("Start")) for path, name in names.items()
        }
        create = _operation("post", "createExperiment", ("X-Neptune-CliVersion",), anything, _ref("Experiment"))
        execute = _operation("post", "executeOperations", ("experimentId",), operations, _list_of("Error"))
        listing = _operation("get", "getExperimentAttributes", ("experimentId",), gives=_ref("Attributes"))
        return self._describe(
            {
                f"{api}/attributes/experiments": create,
                f"{api}/exp/get": _operation("get", "getExperiment", ("experimentId",), gives=_ref("Experiment")),
                f"{api}/attributes/operations": execute,
                f"{api}/attributes/list": listing,
                f"{api}/ping": _operation("get", "ping", ("experimentId",)),
                **uploads,
            },
            {
                "Experiment": _object(
                    id="string",
                    shortId="string",
                    organizationName="string",
                    projectName="string",
                    trashed="boolean",
                    type="string",
                    organizationId="string",
                    projectId="string",
                ),
                "Error": _object(errorDescription="string"),
                "Attributes": _object(attributes=_list_of("Attribute")),
                "Attribute": _object(name="string", type="string"),
                "Start": _object(uploadId="string", errors=_list_of("Error")),
            },
        )


# -- 3.x: protocol buffers --------------------------------------------------------------------------------------------


@dataclass
class Run3:
    series: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    """Step, value and time in s of each point."""
    configs: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)

    def apply(self, snapshot: Any) -> None:
        """Take one ``UpdateRunSnapshot``."""
        step = snapshot.step.whole + snapshot.step.micro / 1e6
        time_s = snapshot.timestamp.seconds + snapshot.timestamp.nanos / 1e9
        for key, value in snapshot.append.items():
            self.series.setdefault(key, []).append((step, value.float64, time_s))
        for key, value in snapshot.assign.items():
            self.configs[key] = getattr(value, value.WhichOneof("value"))
        for key, change in snapshot.modify_sets.items():
            assert key == "sys/tags"
            self.tags += sorted(change.string.values)


class NeptuneScaleServer(LoopbackServer):
    """For the ``neptune_scale`` client: ingestion and files."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, Run3] = {}
        self.files: dict[str, bytes] = {}

    def answer(self, request: Request) -> Answer:
        match request.path:
            case "/api/backend/v1/clients/config":
                security = {"clientId": "neptune-cli", "openIdDiscovery": f"{self.url}/oid"}
                return Answer(
                    {"apiUrl": self.url, "applicationUrl": self.url, "pyLibVersions": {}, "security": security}
                )
            case "/oid":
                return Answer({"authorization_endpoint": f"{self.url}/auth", "token_endpoint": f"{self.url}/token"})
            case "/api/backend/v1/authorization/oauth-token":
                token = self.access_token()
                return Answer({"accessToken": token, "refreshToken": token, "username": "me"})
            case "/api/client/v1/ingest":
                return self._ingest(request.body)
            case "/api/client/v1/ingest/check":
                return self._check(request.body)
            case "/api/storagebridge/v1/signedUrl" | "/api/storagebridge/v1/azure/signedUrl":  # the second up to 0.13
                return self._signed(json.loads(request.body))
            case path if path.startswith("/put/"):
                self.files[path.removeprefix("/put/")] = request.body
                return Answer(status=201, headers={"ETag": '"x"'})  # as Azure; the client of S3 takes any 2xx
        return Answer({"message": request.path, "code": 404}, 404)

    def _ingest(self, body: bytes) -> Answer:
        from neptune_api.proto.neptune_pb.ingest.v1.pub.client_pb2 import SubmitResponse
        from neptune_api.proto.neptune_pb.ingest.v1.pub.ingest_pb2 import RunOperation

        operation = RunOperation()
        operation.ParseFromString(body)
        run = self.runs.setdefault(f"{operation.project}/{operation.run_id}", Run3())
        kind = operation.WhichOneof("operation")
        if kind == "update":
            run.apply(operation.update)
        elif kind == "update_batch":
            for snapshot in operation.update_batch.snapshots:
                run.apply(snapshot)
        request_id = uuid.uuid4().hex
        return Answer(SubmitResponse(request_ids=[request_id], request_id=request_id).SerializeToString())

    def _check(self, body: bytes) -> Answer:
        from neptune_api.proto.google_rpc.code_pb2 import Code
        from neptune_api.proto.neptune_pb.ingest.v1.pub.client_pb2 import BulkRequestStatus, RequestIdList

        asked = RequestIdList()
        asked.ParseFromString(body)
        statuses = BulkRequestStatus()
        for _ in asked.ids:
            count = statuses.statuses.add().code_by_count.add()
            count.code, count.count = Code.OK, 1
        return Answer(statuses.SerializeToString())

    def _signed(self, body: Json) -> Answer:
        return Answer(
            {
                "files": [
                    {
                        "path": file["path"],
                        "project_identifier": file["project_identifier"],
                        "permission": file["permission"],
                        "provider": "aws",
                        "url": f"{self.url}/put/{file['path']}",
                    }
                    for file in body["files"]
                ]
            }
        )
