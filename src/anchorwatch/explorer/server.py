"""Runs shown on this machine: a server that answers this machine only, and only who has its token.

The address holds a random token; Host and Origin are checked before anything is routed, so that
neither a page of another site nor a name that points here reads a run. It only reads: GET, opaque
run numbers and keys, never a path. With a model at hand runs can be forked and forks saved: that
takes POST, JSON and our own Origin beside the token, and names runs by number only. A browser is
sent to the address by a file that nobody else can read: every user of a machine can list the
arguments of its processes.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from anchorwatch.errors import AnchorwatchError, SpecError
from anchorwatch.explorer import page
from anchorwatch.explorer.live import BusyError, Change, Forks
from anchorwatch.explorer.run_data import MissingError, Run
from anchorwatch.explorer.run_list import POLICY, RunFolder, parse_numbers

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
LONGEST_TARGET = 2048
LONGEST_BODY = 1024
"""Bytes of a change that the page asks for."""
HTML = "text/html; charset=utf-8"
LONGEST_NUMBER = 7
"""Digits of a step, layer, head or token."""
_FETCHED_BY_US = ("same-origin", "none")


class Server:
    """A bound, not yet serving explorer: `url` says where, `serve()` blocks until interrupted."""

    def __init__(
        self,
        runs: Sequence[Run] | RunFolder,
        *,
        port: int = 0,
        layer: int | None = None,
        patience: float | None = None,
        forks: Forks | None = None,
    ) -> None:
        """`patience` is in seconds, and for a client that does not end its request.

        With `forks` the page may change runs; they are added to the list `runs` then.
        """
        if not len(runs):
            raise SpecError("name at least one trace, as `anchorwatch run -o` writes it")
        self.token = secrets.token_urlsafe(24)
        self._socket = _bind(port)
        self.port = int(self._socket.getsockname()[1])
        self.app = application(runs, self.token, self.port, self._close_door, forks)
        self._first = None if isinstance(runs, RunFolder) else (runs[0], layer)
        self._patience = patience
        self._server: Any = None
        self._door: TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    def door(self, address: str) -> Path:
        """A file to open, readable by nobody else, that leads to `place`; gone once it has."""
        self._close_door()
        self._door = TemporaryDirectory(prefix="anchorwatch-")
        file = Path(self._door.name) / "open.html"
        way = escape(address)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
            handle.write(
                f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0;url={way}"><title>anchorwatch</title>'
                f'<a href="{way}">to the runs</a>'
            )
        return file

    def _close_door(self) -> None:
        """Somebody came in with the token, or nobody will any more."""
        if self._door is not None:
            self._door.cleanup()
            self._door = None

    def serve(self) -> None:
        """Answer until interrupted."""
        import uvicorn

        from anchorwatch.explorer.connections import Connection

        class Patient(Connection):
            patience = Connection.patience if self._patience is None else self._patience

        config = uvicorn.Config(
            self.app,
            http=Patient,
            log_level="error",
            access_log=False,
            server_header=False,
            ws="none",
        )
        self._server = uvicorn.Server(config)
        if self._first is not None:
            run, layer = self._first  # the one that a page asks for first
            threading.Thread(target=run.prepare, args=(layer,), daemon=True).start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._close_door()

    def close(self) -> None:
        """Stop, from another thread, or give the port back before serving."""
        if self._server is not None:
            self._server.should_exit = True
        else:
            self._close_door()
            self._socket.close()


def spot(text: str) -> dict[str, int]:
    """A place in the page by its words: `step=40,layer=31`."""
    pairs = [word.partition("=") for word in text.split(",") if word]
    for name, _, value in pairs:
        known = name in ("step", "layer", "head", "token")
        if not known or not value.isdecimal() or len(value) > LONGEST_NUMBER:
            raise SpecError(f"--at {text} is not step=40,layer=31: step, layer, head and token go")
    return {name: int(value) for name, _, value in pairs}


def link(url: str, spot: Mapping[str, int]) -> str:
    """The address of a place in the page."""
    return url + "#v=1" + "".join(f"&{name}={value}" for name, value in spot.items())


def application(
    runs: Sequence[Run] | RunFolder,
    token: str,
    port: int,
    shut: Callable[[], None],
    forks: Forks | None = None,
) -> Starlette:
    """The whole server as an ASGI application, guarded; `shut` closes the way in when used."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Route

    folder = runs if isinstance(runs, RunFolder) else None
    shown: Sequence[Run] = [] if isinstance(runs, RunFolder) else runs  # forks are added to it

    def find_run(request: Request) -> Run:
        number = int(request.path_params["run"])
        return folder.run(number) if folder is not None else _find_run(shown, number)

    def index(_: Request) -> Response:
        return _show({number: run.opened.name for number, run in enumerate(shown)})

    def script(_: Request) -> Response:
        return _answer(page.read_built("app.js").encode(), "text/javascript; charset=utf-8")

    def style(_: Request) -> Response:
        return _answer(page.read_built("app.css").encode(), "text/css; charset=utf-8")

    def header(request: Request) -> Response:
        return _json(find_run(request).header())

    def packet(request: Request) -> Response:
        body = find_run(request).packet(request.path_params["key"])
        return _answer(body, "application/octet-stream")

    routes = [
        *([Route("/", index, methods=["GET"])] if folder is None else _folder_routes(folder)),
        Route("/app.js", script, methods=["GET"]),
        Route("/app.css", style, methods=["GET"]),
        Route("/data/{run:int}/header.json", header, methods=["GET"]),
        Route("/data/{run:int}/{key:str}.bin", packet, methods=["GET"]),
    ]
    routes += _fork_routes(shown, forks)
    guarded = [Middleware(_Guard, token=token, port=port, shut=shut, writes=forks is not None)]
    refusals: dict[Any, Any] = {
        MissingError: _answer_missing,
        AnchorwatchError: _answer_refused,
        BusyError: _answer_busy,
        404: _answer_nothing,
        405: _answer_nothing,
    }
    app = Starlette(
        routes=routes,
        middleware=guarded,
        exception_handlers=refusals,
        lifespan=lambda _: _lifetime(shut),
    )
    app.router.redirect_slashes = False
    return app


def _folder_routes(folder: RunFolder) -> list[Route]:
    """The list of a folder's runs, and what leads from it."""
    from starlette.routing import Route

    def index(request: Request) -> Response:
        html = folder.page(folder.read_query(request.query_params))
        answer = _answer(html.encode(), HTML)
        answer.headers["content-security-policy"] = POLICY
        return answer

    def open_runs(request: Request) -> Response:
        numbers = parse_numbers(request.query_params.getlist("run"))
        for number in numbers:
            folder.run(number)  # one that is not there is refused here
        return _show({number: folder.name(number) for number in numbers})

    def picture(request: Request) -> Response:
        return _answer(folder.picture(int(request.path_params["run"])), "image/png")

    def report(_: Request) -> Response:
        if folder.report is None:
            raise MissingError("there is nothing here")
        answer = _answer(folder.report.html, HTML)
        answer.headers["content-security-policy"] = folder.report.policy
        return answer

    return [
        Route("/", index, methods=["GET"]),
        Route("/open", open_runs, methods=["GET"]),
        Route("/picture/{run:int}.png", picture, methods=["GET"]),
        Route("/report", report, methods=["GET"]),
    ]


def _show(names: Mapping[int, str]) -> Response:
    """The page of these runs, by number."""
    listed = [{"id": number, "name": name} for number, name in names.items()]
    html = page.shell("anchorwatch", {"source": "api", "runs": listed})
    return _answer(html.encode(), HTML)


def _fork_routes(runs: Sequence[Run], forks: Forks | None) -> list[Route]:
    """What changes something, where a model is at hand: POST only."""
    from starlette.routing import Route

    if forks is None:
        return []

    async def fork(request: Request) -> Response:
        index = int(request.path_params["run"])
        run = _find_run(runs, index)
        change = Change.from_json(await _read_json(request))
        if run.live is None:
            raise MissingError("forks take the model that wrote the run: view it with --model NAME")
        return _json(asdict(forks.start(index, run.live, run.trace, change)), 202)

    def save(request: Request) -> Response:
        return _json({"name": forks.save(int(request.path_params["run"]))})

    def progress(_: Request) -> Response:
        return _json(asdict(forks.state))

    return [
        Route("/data/{run:int}/fork", fork, methods=["POST"]),
        Route("/data/{run:int}/save", save, methods=["POST"]),
        Route("/data/fork.json", progress, methods=["GET"]),
    ]


async def _read_json(request: Request) -> Any:
    """The body, if it is short and JSON."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_BODY:
            raise SpecError(f"a change has at most {LONGEST_BODY} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise SpecError("a change is JSON") from None


@asynccontextmanager
async def _lifetime(shut: Callable[[], None]) -> AsyncIterator[None]:
    yield
    shut()  # nobody comes any more; a signal ends the process before `serve` goes on


class _Guard:
    """Refuses before routing: other hosts, origins and methods, and who has no token."""

    def __init__(
        self, app: ASGIApp, *, token: str, port: int, shut: Callable[[], None], writes: bool
    ) -> None:
        self._writes = writes
        self._app, self._token, self._close_door = app, token.encode(), shut
        names = (HOST, "localhost")
        self._hosts = {f"{name}:{port}".encode() for name in names}
        self._origins = {f"http://{name}:{port}".encode() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if refused := self._refusal(scope):
            await _json({"error": refused[1]}, refused[0])(scope, receive, send)
            return
        self._close_door()
        path = scope["path"].removeprefix(f"/{self._token.decode()}")
        if not path:  # the page names its parts beside itself, which takes the last slash
            await _redirect(f"{scope['path']}/")(scope, receive, send)
            return
        inner = dict(scope) | {"path": path, "raw_path": path.encode(), "root_path": ""}
        await self._app(inner, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """(status, why), or None for a request that may pass."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        if len(headers.get(b"host", [])) != 1 or headers[b"host"][0].lower() not in self._hosts:
            return 400, "this server answers to 127.0.0.1 and its own port only"
        if any(origin not in self._origins for origin in headers.get(b"origin", [])):
            return 403, "a page of another origin may not read this"
        if self._from_elsewhere(scope, headers):
            return 403, "a page of another site may not read this"
        if scope["method"] != "GET" and not (self._writes and scope["method"] == "POST"):
            return 405, "this server only reads: GET"
        if scope["method"] == "POST" and len(headers.get(b"origin", [])) != 1:
            return 403, "only the page itself may change something: the request names no origin"
        if scope["method"] == "POST" and headers.get(b"content-type") != [b"application/json"]:
            return 415, "a change is sent as application/json"
        raw = scope.get("raw_path") or b""
        if len(raw) > LONGEST_TARGET or b"%" in raw or b"\\" in raw or b"//" in raw:
            return 404, "there is nothing here"
        given = raw.split(b"/")[1] if raw.startswith(b"/") else b""
        if not hmac.compare_digest(given, self._token):
            return 403, "the address lacks its token: open the one that `anchorwatch view` printed"
        return None

    def _from_elsewhere(self, scope: Scope, headers: Mapping[bytes, list[bytes]]) -> bool:
        """Whether another site asks; a link or our own file may lead a whole window to the page."""
        sites = [site.decode("latin-1") for site in headers.get(b"sec-fetch-site", [])]
        if all(site in _FETCHED_BY_US for site in sites):
            return False
        led = headers.get(b"sec-fetch-mode") == [b"navigate"]
        window = headers.get(b"sec-fetch-dest") == [b"document"]
        raw = scope.get("raw_path") or b""
        entry = raw if raw.endswith(b"/") else raw + b"/"
        return not (led and window and hmac.compare_digest(entry, b"/" + self._token + b"/"))


def _find_run(runs: Sequence[Run], index: int) -> Run:
    if index >= len(runs):
        raise MissingError("there is no such run")
    return runs[index]


def _answer(body: bytes, kind: str, status: int = 200) -> Response:
    from starlette.responses import Response

    headers = {
        "content-security-policy": page.policy_of("'self'", "'self'") + "; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    return Response(body, status, headers=headers, media_type=kind)


def _redirect(address: str) -> Response:
    answer = _answer(b"", "text/plain", 307)
    answer.headers["location"] = address
    return answer


def _json(value: Any, status: int = 200) -> Response:
    return _answer(json.dumps(value, allow_nan=False).encode(), "application/json", status)


async def _answer_missing(_: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 404)


async def _answer_refused(_: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 400)


async def _answer_busy(_: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 409)


async def _answer_nothing(_: Request, __: Exception) -> Response:
    return _json({"error": "there is nothing here"}, 404)


def _bind(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)  # who has the address may come before we serve, and waits
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(
            f"port {port} cannot be had, {reason}: leave --port out for a free one"
        ) from None
    return listener
