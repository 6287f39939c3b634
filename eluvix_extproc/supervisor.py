"""`serve`: one process in the foreground, or a parent that keeps `server.processes` children running.

Each child is this same program with its number; it has its own ext_proc endpoint and admin port, so nothing is shared
and a child that dies takes only its own streams. The parent passes SIGTERM and SIGHUP on and starts a dead child anew,
with a pause that grows while it keeps dying.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

import structlog

RESTART_S = (0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 30.0   # a child that lived this long starts again without a longer pause

logger = structlog.get_logger("eluvix")


async def supervise(processes: int, arguments: Callable[[int], list[str]]) -> int:
    """Run until told to stop; the exit code. `arguments` gives a child's command line by its number."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    children: dict[int, asyncio.subprocess.Process] = {}

    def pass_on(number: int) -> None:
        if number != signal.SIGHUP:
            stopping.set()
        for child in children.values():
            if child.returncode is None:
                child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, pass_on, number)
    codes = await asyncio.gather(*(_keep(i, arguments(i), children, stopping) for i in range(processes)))
    return max(codes)


async def _keep(
    number: int, command: list[str], children: dict[int, asyncio.subprocess.Process], stopping: asyncio.Event
) -> int:
    failures = 0
    loop = asyncio.get_running_loop()
    while True:
        started = loop.time()
        child = children[number] = await asyncio.create_subprocess_exec(*command)
        if stopping.is_set():    # told to stop while this one was being started, so nobody has told it
            child.terminate()
        code = await child.wait()
        if stopping.is_set():
            return 0 if code in (0, -signal.SIGTERM, -signal.SIGINT) else 1
        failures = 0 if loop.time() - started > STEADY_S else failures + 1
        pause = RESTART_S[min(failures, len(RESTART_S) - 1)]
        logger.error("process ended", process=number, code=code, restart_in_s=pause)
        try:
            await asyncio.wait_for(stopping.wait(), pause)
            return 0
        except TimeoutError:
            pass


def child_command(config: str, number: int) -> list[str]:
    return [sys.executable, "-m", "eluvix_extproc.cli", "serve", "--config", config, "--process", str(number)]
