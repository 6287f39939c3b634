"""What one reading makes of servers that are not quite a worker."""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web

from eluvix_extproc.workers.metrics import Sample
from eluvix_extproc.workers.scrape import Alive, Failed, new_session, scrape


async def read(handler: object, path: str = "/metrics") -> Alive | Failed:
    app = web.Application()
    app.router.add_get("/{tail:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with new_session() as session:
            return await scrape(session, f"127.0.0.1:{runner.addresses[0][1]}", path, 30.0)
    finally:
        await runner.cleanup()


async def test_the_path_and_its_query_are_asked_for_in_plain_text() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert (request.path_qs, request.headers["Accept-Encoding"]) == ("/stats?format=prometheus", "identity")
        return web.Response(text="vllm:num_requests_running 2\n")

    assert await read(handler, "/stats?format=prometheus") == Alive(Sample(running=2.0))


async def test_a_redirect_is_not_followed() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.path == "/metrics"
        raise web.HTTPFound("/login")

    assert await read(handler) == Alive(None)


async def test_a_body_without_end_is_cut_off() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"vllm:num_requests_running 1\n" * 10_000)
        except ConnectionError:
            return response

    assert await read(handler) == Alive(None)


async def test_nothing_that_listens_is_refused() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening, so that nobody else takes the port meanwhile
        async with new_session() as session:
            address = f"127.0.0.1:{held.getsockname()[1]}"
            assert await scrape(session, address, "/metrics", 30.0) == Failed("refused", refused=True)


async def test_something_that_is_not_http_is_broken_and_not_refused() -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server, new_session() as session:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await scrape(session, address, "/metrics", 30.0) == Failed("broken")
