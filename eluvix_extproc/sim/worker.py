"""The worker as an HTTP server. `start_worker` may be called many times in one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import orjson
from aiohttp import WSMsgType, web

from eluvix_extproc.core.prompt import Api
from eluvix_extproc.sim import answers, faults, formats, intake, refusals, text
from eluvix_extproc.sim.engine import Engine
from eluvix_extproc.sim.faults import BadFault, Fault, FaultPlan
from eluvix_extproc.sim.generate import generate
from eluvix_extproc.sim.journal import Journal, Received
from eluvix_extproc.sim.loop import EngineLoop
from eluvix_extproc.sim.metrics import Gauges, exposition
from eluvix_extproc.sim.options import WorkerOptions
from eluvix_extproc.sim.refusals import Refusal
from eluvix_extproc.sim.stream import reset

_log = logging.getLogger("eluvix.sim")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Every path that a prompt is sent to; the same table as the sidecar's would prove nothing.
_GENERATING = {
    "/v1/chat/completions": Api.OPENAI_CHAT,
    "/v1/completions": Api.OPENAI_COMPLETIONS,
    "/v1/responses": Api.OPENAI_RESPONSES,
    "/v1/messages": Api.ANTHROPIC_MESSAGES,
    "/v1/messages/count_tokens": Api.ANTHROPIC_COUNT_TOKENS,
    "/v1/embeddings": Api.OPENAI_EMBEDDINGS,
    "/rerank": Api.RERANK,
    "/v1/rerank": Api.RERANK,
    "/v2/rerank": Api.RERANK,
    "/inference/v1/generate": Api.VLLM_GENERATE,
    "/generate": Api.SGLANG_GENERATE,
}
_FAULT = web.RequestKey("fault", Fault)
_RECEIVED = web.RequestKey("received", Received)


class RunningWorker:
    """A worker that serves. `engine`, `journal` and `faults` may be read and set while it does."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.engine = Engine(options)
        self.journal = Journal()
        self.faults = FaultPlan()
        self.port = 0
        self._loop = EngineLoop(self.engine)
        self._draining = False
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._started = int(datetime.now(UTC).timestamp())
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, access_log=None, auto_decompress=False, shutdown_timeout=0.1
        )

    @property
    def address(self) -> str:
        """`host:port`, with the port that was chosen."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"{host}:{self.port}"

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuses new generation at once (500, while /health stays 200, as vLLM does), lets what runs finish for up to
        `grace_s`, then closes. Calling it again does nothing."""
        self._draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("worker %s stops with %d requests unfinished", self.address, self._answering)
        await self._runner.cleanup()
        await self._loop.stop()

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.options.host, self.options.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._loop.start()
        _log.info("worker %s serves %s as %s", self.address, ", ".join(self.options.models), self.options.role)

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._around], client_max_size=1 << 30)
        for method, path, handler in (
            *(("POST", path, self._generate) for path in _GENERATING),
            ("POST", "/tokenize", self._tokenize),
            ("GET", "/v1/models", self._models),
            ("GET", "/health", self._health),
            ("GET", "/version", self._version),
            ("GET", "/load", self._load),
            ("GET", "/metrics", self._metrics),
            ("*", "/upload", self._upload),
            ("GET", "/ws", self._websocket),
            ("GET", "/sim/requests", self._requests),
            ("DELETE", "/sim/requests", self._forget_requests),
            ("GET", "/sim/faults", self._show_faults),
            ("POST", "/sim/faults", self._plan_faults),
            ("DELETE", "/sim/faults", self._clear_faults),
        ):
            app.router.add_route(method, path, handler)
        app.on_response_prepare.append(self._add_headers)
        return app

    @web.middleware
    async def _around(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path.startswith("/sim/"):
            return await handler(request)
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in request.raw_headers]
        received = self.journal.open(request.method, request.path_qs, headers)
        request[_RECEIVED] = received
        self._answering += 1
        self._idle.clear()
        try:
            response = await self._answer(request, handler)
            received.outcome = str(response.status)
            if isinstance(response, web.Response) and isinstance(response.body, bytes):
                received.answered(response.body)
            return response
        except (asyncio.CancelledError, ConnectionError):
            received.outcome = "client-left"
            raise
        except Exception:
            received.outcome = "failed"
            raise
        finally:
            self._answering -= 1
            if not self._answering:
                self._idle.set()

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            fault = self.faults.take(
                request.path, request.path in _GENERATING, request.headers.get(faults.HEADER)
            )
            request[_FAULT] = fault
            if fault.delay_headers_ms:
                await asyncio.sleep(fault.delay_headers_ms / 1000)
            if fault.reset == "before_headers":
                await self._read(request)
                reset(request)
                return web.Response(status=499)
            if fault.status is not None:
                await self._read(request)
                return _faulty_answer(fault)
            return await handler(request)
        except Refusal as refusal:
            return _json(formats.refusal(_GENERATING.get(request.path), refusal.body), refusal.status)
        except BadFault as error:
            return _json(refusals.bad_value(faults.HEADER, str(error)).body, 400)
        except web.HTTPException as error:
            await self._read(request)
            allow = {"allow": error.headers["allow"]} if "allow" in error.headers else None
            return _json({"detail": error.reason}, error.status, allow)

    async def _read(self, request: web.Request) -> bytes:
        """The whole body, noted in the journal."""
        body = await request.read()
        received = request[_RECEIVED]
        received.feed(body)
        self.journal.body_complete(received)
        return body

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["server"] = "uvicorn"
        response.headers["vary"] = "Origin"
        response.headers["x-sim-worker"] = self.address
        response.headers["x-sim-role"] = self.options.role
        response.headers.update(request.get(_FAULT, faults.NONE).headers)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        if self._draining:
            raise refusals.shutting_down()
        return await generate(
            request,
            request[_RECEIVED],
            body,
            api=_GENERATING[request.path],
            fault=request[_FAULT],
            options=self.options,
            loop=self._loop,
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        packed = intake.read_text(body, request.headers.get("content-type", ""), self.options)
        return _json(answers.tokens(text.ids(packed), self.options.max_model_len))

    async def _models(self, request: web.Request) -> web.Response:
        await self._read(request)
        return _json(answers.models(self.options.models, self._started, self.options.max_model_len))

    async def _health(self, request: web.Request) -> web.Response:
        await self._read(request)
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        await self._read(request)
        return _json({"version": answers.VERSION})

    async def _load(self, request: web.Request) -> web.Response:
        await self._read(request)
        return _json({"server_load": self.engine.load})

    async def _metrics(self, request: web.Request) -> web.Response:
        await self._read(request)
        engine, options = self.engine, self.options
        gauges = Gauges(
            model=options.models[0],
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.pool.usage,
            block_size=options.block_size,
            kv_blocks=options.kv_blocks,
        )
        page = exposition(engine.metrics, gauges).encode()
        return web.Response(body=page, headers={"content-type": "text/plain; version=1.0.0; charset=utf-8"})

    async def _upload(self, request: web.Request) -> web.Response:
        """Counts and hashes a body of any size as it arrives, holding none of it."""
        received = request[_RECEIVED]
        async for piece in request.content.iter_any():
            received.feed(piece)
        self.journal.body_complete(received)
        return _json({"bytes": received.body_bytes, "sha256": received.sha256()})

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        return socket

    async def _requests(self, request: web.Request) -> web.Response:
        return _json(self.journal.listing(bodies=request.query.get("bodies") == "1"))

    async def _forget_requests(self, request: web.Request) -> web.Response:
        self.journal.clear()
        return _json(self.journal.listing(bodies=False))

    async def _show_faults(self, request: web.Request) -> web.Response:
        return _json({"faults": self.faults.planned()})

    async def _plan_faults(self, request: web.Request) -> web.Response:
        try:
            return _json({"planned": self.faults.replace(await request.read())})
        except BadFault as error:
            return _json({"detail": str(error)}, 400)

    async def _clear_faults(self, request: web.Request) -> web.Response:
        self.faults.clear()
        return _json({"faults": []})


async def start_worker(options: WorkerOptions) -> RunningWorker:
    """Listens and serves; raises OSError when the address cannot be had."""
    worker = RunningWorker(options)
    await worker.start()
    return worker


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    content_type = {"content-type": "application/json"}
    return web.Response(body=orjson.dumps(body), status=status, headers={**content_type, **(headers or {})})


def _faulty_answer(fault: Fault) -> web.Response:
    assert fault.status is not None
    if isinstance(fault.body, str):
        return web.Response(status=fault.status, text=fault.body)
    if fault.body is not None:
        return _json(fault.body, fault.status)
    return _json(Refusal(fault.status, "Simulated Fault", "A fault that was asked for.").body, fault.status)
