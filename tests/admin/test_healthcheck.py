from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eluvix_extproc.admin.healthcheck import healthcheck
from eluvix_extproc.admin.server import AdminServer
from eluvix_extproc.core.fleet import Fleet
from tests.admin.test_server import state


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, healthcheck, list(arguments))


async def against(server: AdminServer, *arguments: str) -> Result:
    await server.start()
    try:
        return await run(*(each.replace("ADDRESS", server.address) for each in arguments))
    finally:
        await server.stop()


@pytest.mark.parametrize("address", ["ADDRESS", "http://ADDRESS", "http://ADDRESS/"])
async def test_ready_is_0(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    result = await against(AdminServer("127.0.0.1:0", state()), "--address", address)
    assert (result.exit_code, result.stdout.endswith(": ready\n")) == (0, True)


async def test_a_warning_is_told_and_is_still_0() -> None:
    server = AdminServer("127.0.0.1:0", state(fleet=lambda: Fleet(())))
    result = await against(server, "--address", "ADDRESS")
    assert result.exit_code == 0
    assert "ready, but no pool has a ready worker" in result.stdout


async def test_not_ready_is_1_with_the_reason() -> None:
    server = AdminServer("127.0.0.1:0", state(ready=lambda: "draining"))
    result = await against(server, "--address", "ADDRESS")
    assert result.exit_code == 1
    assert "not ready: draining" in result.stderr


async def test_a_unix_socket(tmp_path: Path) -> None:
    server = AdminServer(f"unix:{tmp_path}/admin.sock", state())
    assert (await against(server, "--address", "ADDRESS")).exit_code == 0
    assert (await run("--address", server.address)).exit_code == 1


async def test_nobody_there_and_somebody_else_are_1() -> None:
    server = AdminServer("127.0.0.1:0", state())
    await server.start()
    await server.stop()
    result = await run("--address", server.address)
    assert (result.exit_code, "does not answer" in result.stderr) == (1, True)

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")
        writer.close()

    async with await asyncio.start_server(other, "127.0.0.1", 0) as somebody:
        port = somebody.sockets[0].getsockname()[1]
        result = await run("--address", f"127.0.0.1:{port}")
    assert (result.exit_code, "is not a sidecar's admin address" in result.stderr) == (1, True)


async def test_a_server_that_hangs_is_1_after_the_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        result = await run("--address", f"127.0.0.1:{port}", "--timeout", "0.05")
    assert (result.exit_code, "timed out" in result.stderr) == (1, True)


@pytest.mark.parametrize("address", ["9090", "127.0.0.1", "127.0.0.1:http", ":9090", "127.0.0.1:70000"])
async def test_an_address_that_is_none_is_2(address: str) -> None:
    assert (await run("--address", address)).exit_code == 2


async def test_a_configuration_names_the_address_of_every_process(tmp_path: Path) -> None:
    first = AdminServer("127.0.0.1:0", state())
    await first.start()
    port = int(first.address.rpartition(":")[2])
    config = tmp_path / "eluvix.yaml"
    fleet = "pools: [{name: all, role: colocated, cluster: llm, workers: {static: ['10.0.0.1:8000']}}]\n"
    model = "models: [{name: m, served: [m], tokenizer: {estimate: {bytesPerToken: 4}}}]\n"
    try:
        config.write_text(f"admin: {{listen: '0.0.0.0:{port}'}}\n" + model + fleet)
        result = await run("--config", str(config))
        assert (result.exit_code, result.output.count("\n")) == (0, 1), result.output
        unix = f"admin: {{listen: 'unix:{tmp_path}/admin.sock'}}\nserver: {{processes: 2}}\n"
        config.write_text(unix + model + fleet)
        result = await run("--config", str(config))
        assert result.exit_code == 1
        assert "admin-0.sock" in result.stderr and "admin-1.sock" in result.stderr
    finally:
        await first.stop()


async def test_a_configuration_that_cannot_be_used_is_2(tmp_path: Path) -> None:
    config = tmp_path / "eluvix.yaml"
    config.write_text("admn: {}\n")
    result = await run("--config", str(config))
    assert (result.exit_code, "admn" in result.stderr) == (2, True)
    assert (await run("--config", str(tmp_path / "none.yaml"))).exit_code == 2
    assert (await run("--config", str(config), "--address", "127.0.0.1:1")).exit_code == 2


def test_it_starts_without_the_heavy_imports() -> None:
    code = (
        "import sys, eluvix_extproc.admin.healthcheck\n"
        "print([name for name in ('aiohttp', 'pydantic', 'grpc', 'structlog', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
