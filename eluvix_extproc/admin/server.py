"""The admin HTTP server.

It is for operators and probes, not for clients: it shows paths, request ids and worker addresses, and asks nobody who
they are. Keep it on loopback, or, where probes and Prometheus come by the pod's address, behind a network policy;
never publish it through the gateway. It answers GET (and HEAD) only and changes nothing.

Readiness is about this process: 503 while it starts and while it drains. A fleet without a ready worker does not make
it unready. Such a sidecar still passes through what is not an LLM request, still answers bad requests, and lets the
rest go on unrouted; were it unready instead, every replica would be at the same moment, Envoy would be left without
any ext_proc endpoint, and a gateway pod that carries the sidecar would drop out of service with all its other
traffic. `/readyz` says it as a warning; `eluvix_workers{state="ready"}` is what to alert on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
import structlog
from aiohttp import web

from eluvix_extproc.admin.page import CONTENT_SECURITY_POLICY, PAGE
from eluvix_extproc.admin.view import fleet_json
from eluvix_extproc.config.values import Listen
from eluvix_extproc.core.fleet import Fleet

DEFAULT_LIMIT = 50
MAX_LIMIT = 1_000

_log = structlog.get_logger()
_PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class AdminState:
    """All that the server sees of the process; each is called when a request asks for it.

    `ready` gives None, or the reason why not (`starting`, `draining`). `in_flight` is by worker address; `itl` is a
    worker's current mean inter-token latency in seconds. `decisions` takes a limit and gives JSON values, the last
    first. `config` is free of secrets. `metrics_text` gives the text format in pieces. `now` is monotonic seconds,
    the clock of `Load.at`.
    """

    ready: Callable[[], str | None]
    fleet: Callable[[], Fleet]
    in_flight: Callable[[], Mapping[str, int]]
    itl: Callable[[str], float | None]
    decisions: Callable[[int], Sequence[Mapping[str, object]]]
    config: Callable[[], Mapping[str, object]]
    metrics_text: Callable[[], Iterable[bytes]]
    now: Callable[[], float]


class AdminServer:
    """Serves on `listen`: `ip:port` (IPv6 in brackets, port 0 takes a free one) or `unix:/path`; else ValueError.

    With `server.processes` above 1 each process has one of its own, at its own element of
    `settings.admin.listen.endpoints(processes)`: ports N, N+1, ….
    """

    def __init__(self, listen: str, state: AdminState) -> None:
        self._listen = Listen.parse(listen)
        self._state = state
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Bind and serve; OSError when the address cannot be had."""
        app = web.Application(middlewares=[self._guard])
        for path, handler in (
            ("/", self._page),
            ("/healthz", self._healthz),
            ("/readyz", self._readyz),
            ("/metrics", self._metrics),
            ("/fleet", self._fleet),
            ("/decisions", self._decisions),
            ("/config", self._config),
        ):
            app.router.add_get(path, handler)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await self._site(runner).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        if not self._listen.unix:
            self._listen = replace(self._listen, port=runner.addresses[0][1])

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @property
    def address(self) -> str:
        """`ip:port` as bound, or `unix:/path`."""
        return str(self._listen)

    def _site(self, runner: web.AppRunner) -> web.BaseSite:
        if self._listen.unix:
            return web.UnixSite(runner, self._listen.unix)
        return web.TCPSite(runner, self._listen.host, self._listen.port)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not _may_name_us(request.host, self._listen):
                return _json({"error": "this Host is not ours"}, 421)
            return await handler(request)
        except web.HTTPMethodNotAllowed:
            return _json({"error": "GET only"}, 405, {"Allow": "GET, HEAD"})
        except web.HTTPException as failure:
            return _json({"error": failure.reason.lower()}, failure.status)
        except Exception:
            _log.exception("admin request failed", path=request.path)
            return _json({"error": "internal error"}, 500)

    async def _page(self, _request: web.Request) -> web.Response:
        headers = {**_HEADERS, "Content-Security-Policy": CONTENT_SECURITY_POLICY}
        return web.Response(body=PAGE, content_type="text/html", charset="utf-8", headers=headers)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _json({"alive": True})

    async def _readyz(self, _request: web.Request) -> web.Response:
        reason = self._state.ready()
        if reason is not None:
            return _json({"ready": False, "reason": reason}, 503)
        answer: dict[str, object] = {"ready": True}
        if not any(pool.ready for pool in self._state.fleet().pools):
            answer["warning"] = "no pool has a ready worker"
        return _json(answer)

    async def _metrics(self, _request: web.Request) -> web.Response:
        pieces = []
        for piece in self._state.metrics_text():
            pieces.append(piece)
            # Thousands of series take milliseconds to write down; exchanges come first.
            await asyncio.sleep(0)
        return web.Response(body=b"".join(pieces), headers={**_HEADERS, "Content-Type": _PLAIN_TEXT})

    async def _fleet(self, _request: web.Request) -> web.Response:
        state = self._state
        return _json(fleet_json(state.fleet(), state.in_flight(), state.itl, state.now()))

    async def _decisions(self, request: web.Request) -> web.Response:
        asked = request.query.get("limit", str(DEFAULT_LIMIT))
        if not re.fullmatch(r"[0-9]{1,6}", asked) or not 1 <= int(asked) <= MAX_LIMIT:
            return _json({"error": f"limit is a whole number from 1 to {MAX_LIMIT}"}, 400)
        return _json({"decisions": self._state.decisions(int(asked))})

    async def _config(self, _request: web.Request) -> web.Response:
        return _json(self._state.config())


def _may_name_us(authority: str, listen: Listen) -> bool:
    """Whether a request with this Host may be answered.

    A web page can point a name of its own at 127.0.0.1 and have a browser on this machine read us (DNS rebinding).
    It cannot do so with an IP address or `localhost`, so on loopback only those are answered.
    """
    if listen.unix or not _is_loopback(listen.host):
        return True
    return _is_loopback(re.sub(r":[0-9]*$", "", authority).removeprefix("[").removesuffix("]"))


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value, default=str)
    return web.Response(
        body=body, status=status, content_type="application/json", headers={**_HEADERS, **(headers or {})}
    )
