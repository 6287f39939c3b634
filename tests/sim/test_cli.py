"""The command as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process

import aiohttp
from click.testing import CliRunner

from eluvix_extproc.sim.cli import sim_worker

RUN = "from eluvix_extproc.sim.cli import sim_worker; sim_worker()"


async def _start(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", RUN, *arguments, stdout=PIPE, stderr=PIPE)


async def _address(process: Process) -> str:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.startswith("listening on 127.0.0.1:")
    return line.split()[-1]


async def test_it_prints_each_port_and_finishes_streams_after_sigterm() -> None:
    process = await _start("--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--itl-ms", "20", "--role", "decode")
    try:
        first, second = await _address(process), await _address(process)
        assert first != second
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "stream": True}
        async with aiohttp.ClientSession() as http, http.post(f"http://{second}/v1/chat/completions", json=body) as got:
            assert got.headers["x-sim-role"] == "decode"
            process.send_signal(signal.SIGTERM)
            events = (await got.text()).removesuffix("\n\n").split("\n\n")
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert await asyncio.wait_for(process.wait(), 30) == 0
        assert process.stderr is not None
        assert f"worker {second} serves sim as decode" in (await process.stderr.read()).decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_an_address_in_use_is_said_plainly() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        process = await _start("--listen", address)
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert f"cannot listen on {address}" in errors.decode()
    assert "Traceback" not in errors.decode()


def test_unusable_options_exit_with_2() -> None:
    for arguments in (["--listen", "8000"], ["--kv-blocks", "1"], ["--role", "boss"], ["--itl-ms", "-1"]):
        result = CliRunner().invoke(sim_worker, arguments)
        assert result.exit_code == 2, arguments
        assert "Error" in result.output
