"""The web application: addresses, and how a request becomes a page, JSON, a stream of events or an action."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oncelog import errors
from oncelog.aio import Admin
from oncelog.console import formats
from oncelog.console.addresses import ACTIONS, PAGES, Act
from oncelog.console.events import EventStream
from oncelog.console.guard import COOKIE, HEADERS, Guard, RefusedError
from oncelog.console.model import Actor, Page, PageError, View, page_error_of
from oncelog.console.rendering import Renderer
from oncelog.console.watches import Snapshot, TooManyError, Watches
from oncelog.watch.asking import texts

log = logging.getLogger("oncelog.console")

FIRST_PAINT_S = 0.4
"""After this time, a page that still loads is sent without its content, which follows as an event."""
LARGEST_POST = 2 * 1024 * 1024
MOST_FIELDS = 50
ACTION_TIMEOUT_S = 30.0

Loader = Callable[[View], Awaitable[Page]]


class Console:
    """One console: its client, its settings, and the pages that somebody looks at."""

    def __init__(
        self,
        bootstrap: str,
        config: Mapping[str, Any],
        *,
        changes: bool,
        guard: Guard,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.config = dict(config)
        self.changes = changes
        self.guard = guard
        self._options = dict(options or {})
        self.renderer = Renderer(bootstrap, changes=changes, logout=guard.token is not None)
        self.watches = Watches(self.renderer.content, now_ms)
        self._admin: Admin | None = None

    @property
    def admin(self) -> Admin:
        """Return the client, which connects at its first call."""
        if self._admin is None:
            self._admin = Admin(self.bootstrap, {**self.config, **self._options})
            self._admin.cluster.missing_topic_ms = 500
        return self._admin

    @property
    def actor(self) -> Actor:
        """Return what pages and actions may use."""
        return Actor(self.admin, self.bootstrap, self.config, now_ms())

    async def close(self) -> None:
        """Close the client."""
        if self._admin is not None:
            await self._admin.close()

    def view(self, request: Request, query: Mapping[str, str], memory: dict[str, Any]) -> View:
        """Return what a loader may use."""
        return View(self.actor, dict(request.path_params), query, memory, now_ms(), self.changes)

    def cost(self) -> str:
        """Return what the console costs the brokers, as a sentence."""
        counted = self.admin.metrics()
        viewers = self.watches.viewers
        return (
            f"{viewers} {'viewer' if viewers == 1 else 'viewers'}, {counted.request_rate:.1f} requests and "
            f"{formats.size(int(counted.incoming_byte_rate))} per second from the brokers"
        )


def now_ms() -> int:
    """Return the time in ms since the epoch."""
    return int(time.time() * 1000)


def make_app(console: Console) -> ASGIApp:
    """Return the ASGI application of a console."""
    routes = [
        *(Route(path, _page(console, loader), methods=["GET"]) for path, loader in PAGES.items()),
        *(Route(path, _action(console, act), methods=["POST"]) for path, act in ACTIONS.items()),
        Route("/login", _login(console), methods=["GET", "POST"]),
        Route("/logout", _logout, methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("oncelog.console", "static")])),
    ]

    async def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headings = {404: "There is no such page", 405: "This address does not take this request"}
        return _error_page(
            console, request.url.path, PageError(error.status_code, headings.get(error.status_code, "Error"), "")
        )

    return Starlette(
        routes=routes,
        exception_handlers={HTTPException: failed},
        max_body_size=LARGEST_POST,
        middleware=[Middleware(_Guarded, console=console)],
    )


class _Guarded:
    """Refuse requests that the guard rejects, and add the headers of every response."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(each for each in added if each[0] not in own)]
            await send(message)

        request = Request(scope)
        guard, path = self._console.guard, scope["path"]  # the path of `request.url` depends on the header Host
        headers = dict(request.headers.items())
        target = scope["path"] + "?" + scope["query_string"].decode("latin-1")
        try:
            guard.check(scope["method"], target, headers)
            app: ASGIApp = self._app
            if not guard.logged_in(path, headers):
                if scope["method"] != "GET" or "text/html" not in headers.get("accept", ""):
                    raise RefusedError(401, "Log in first.")
                app = RedirectResponse("/login?" + urlencode({"next": target.rstrip("?")}), 303)
        except RefusedError as refusal:
            app = _error_page(
                self._console, path, PageError(refusal.status, "The console refuses this request", refusal.text)
            )
        await app(scope, receive, send_with_headers)


def _query(request: Request) -> dict[str, str]:
    return {name: value for name, value in sorted(request.query_params.items()) if name != "format"}


def _page(console: Console, loader: Loader) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a page."""

    async def endpoint(request: Request) -> Response:
        query = _query(request)
        address = f"{request.url.path}?{urlencode(query)}"

        async def load(memory: dict[str, Any]) -> Page:
            view = console.view(request, query, memory)
            page = await loader(view)
            page.unread = texts(view.asker.troubles)
            return page

        try:
            if "text/event-stream" in request.headers.get("accept", ""):
                console.watches.require_place()
                return EventStream(console.watches.follow(address, load), console.renderer.notice, console.cost)
            if request.query_params.get("format") == "json":
                return _json(await console.watches.current(address, load))
            first = asyncio.ensure_future(console.watches.current(address, load))
            # A browser fills the page with its script later. Other programs get the whole page.
            soon = request.headers.get("sec-fetch-mode") == "navigate"
            await asyncio.wait((first,), timeout=FIRST_PAINT_S if soon else None)
            state = first.result() if first.done() else None
        except TooManyError as error:
            return _error_page(console, request.url.path, PageError(503, "The console is busy", str(error)))
        return _document(console, request, state)

    return endpoint


def _document(console: Console, request: Request, state: Snapshot | None) -> Response:
    path = request.url.path
    json_query = urlencode([*request.query_params.multi_items(), ("format", "json")])
    if state is None:
        text = console.renderer.part("loading.html")
        document = console.renderer.document("Loading", text, path, live=True, loading=True, json_query=json_query)
        return HTMLResponse(document)
    notice = console.renderer.notice(state)
    if state.page is None:
        assert state.page_error is not None
        text = console.renderer.document(state.page_error.heading, notice, path, live=state.page_error.status >= 500)
        return HTMLResponse(text, state.page_error.status)
    live = state.page.live
    more = {"at_ms": state.at_ms, "cost": console.cost(), "json_query": json_query}
    return HTMLResponse(console.renderer.document(state.page.title, state.html, path, notice=notice, live=live, **more))


def _json(state: Snapshot) -> Response:
    failed = state.page_error
    error = None if failed is None else {"heading": failed.heading, "text": failed.text, "advice": failed.advice}
    shown = {} if state.page is None else state.page.as_json()
    status = failed.status if failed is not None and state.page is None else 200
    return JSONResponse({"at_ms": state.at_ms, "error": error, **shown}, status)


def _error_page(console: Console, path: str, page_error: PageError) -> HTMLResponse:
    content = console.renderer.error(page_error)
    return HTMLResponse(console.renderer.document(page_error.heading, content, path), page_error.status)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises RefusedError."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise RefusedError(415, "The console takes forms only.")
    try:
        body = (await request.body()).decode()
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except (ValueError, ClientDisconnect):
        raise RefusedError(400, "The form cannot be read.") from None


def _action(console: Console, act: Act) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that changes something. It answers with the address of the page to go to."""

    async def endpoint(request: Request) -> Response:
        path = request.url.path
        try:
            if not console.changes:
                raise RefusedError(403, "This console only reads. To change something, start it with --allow-changes.")
            form = await _form(request)
            async with asyncio.timeout(ACTION_TIMEOUT_S):
                target = await act(console.actor, dict(request.path_params), form)
        except RefusedError as refusal:
            return _error_page(console, path, PageError(refusal.status, "Nothing was changed", refusal.text))
        except TimeoutError:
            text = f"The brokers have not answered within {ACTION_TIMEOUT_S:g} s, so the outcome is not known."
            return _error_page(console, path, PageError(504, "The outcome is not known", text))
        except errors.OncelogError as error:
            return _error_page(console, path, page_error_of(error))
        except HTTPException:
            raise
        except Exception:
            log.exception("an action has failed")
            text = "The log of the console has the reason. Whether something was changed is not known."
            return _error_page(console, path, PageError(500, "The console has failed", text))
        finally:
            console.watches.forget()
        return RedirectResponse(target, 303)

    return endpoint


def _login(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        wrong = False
        following = request.query_params.get("next", "/")
        if request.method == "POST":
            try:
                token = (await _form(request)).get("token", "")
            except RefusedError as refusal:
                return _error_page(console, "/login", PageError(refusal.status, "Not logged in", refusal.text))
            if console.guard.knows(token.strip()):
                answer = RedirectResponse(_own_address(following), 303)
                secure = request.url.scheme == "https"
                answer.set_cookie(COOKIE, console.guard.session(), httponly=True, samesite="strict", secure=secure)
                return answer
            wrong = True
        content = console.renderer.part("login.html", wrong=wrong, following=following)
        return HTMLResponse(console.renderer.document("Log in", content, "/login"), 403 if wrong else 200)

    return endpoint


def _own_address(target: str) -> str:
    """Return an address of the console: one of another site is replaced."""
    own = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if own else "/"


async def _logout(request: Request) -> Response:
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, samesite="strict", httponly=True)
    return answer
