"""`eluvix-extproc sim-worker`: one or several simulated workers in one process."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from eluvix_extproc.sim.options import OVERLOAD_MODES, ROLES, WorkerOptions
from eluvix_extproc.sim.worker import start_worker

_DEFAULTS = WorkerOptions()
_F = TypeVar("_F", bound="Callable[..., Any] | click.Command")


def _shown(name: str, kind: Any, default: object, text: str) -> Callable[[_F], _F]:
    return click.option(name, type=kind, default=default, show_default=True, help=text)


@click.command("sim-worker")
@click.option("--listen", multiple=True, default=("127.0.0.1:8000",), show_default=True, metavar="HOST:PORT",
              help="Where to serve; repeat for several workers. Port 0 takes a free one.")  # fmt: skip
@click.option("--model", "models", multiple=True, default=("sim",), show_default=True, metavar="NAME",
              help="A model name that clients use; repeat for aliases.")  # fmt: skip
@_shown("--role", click.Choice(ROLES), _DEFAULTS.role, "What the worker says it is; it changes nothing else.")
@_shown("--prefill-tokens-per-s", float, _DEFAULTS.prefill_tokens_per_s, "Prompt tokens computed in a second.")
@_shown("--base-ttft-ms", float, _DEFAULTS.base_ttft_ms, "From a request's arrival to its first step.")
@_shown("--itl-ms", float, _DEFAULTS.itl_ms, "Length of a step that only decodes.")
@_shown("--interference", float, _DEFAULTS.interference, "Share of a prefill chunk's time that decoding waits for.")
@_shown("--max-batched-tokens", int, _DEFAULTS.max_batched_tokens, "Tokens in one step: the size of prefill chunks.")
@_shown("--max-running", int, _DEFAULTS.max_running, "Requests in the batch.")
@click.option("--max-queued", type=int, default=None, help="Requests beyond them before it refuses.  [default: any]")
@_shown("--overload-mode", click.Choice(OVERLOAD_MODES), _DEFAULTS.overload_mode, "503, or 200 and an error event.")
@_shown("--max-model-len", int, _DEFAULTS.max_model_len, "Tokens of prompt and output together.")
@_shown("--kv-blocks", int, _DEFAULTS.kv_blocks, "Blocks in the KV cache.")
@_shown("--block-size", int, _DEFAULTS.block_size, "Tokens in a block.")
@_shown("--output-tokens", int, _DEFAULTS.output_tokens, "Length of an answer to a request without a limit.")
@_shown("--shutdown-timeout", float, 300.0, "Seconds that running requests get after SIGTERM.")
def sim_worker(listen: tuple[str, ...], shutdown_timeout: float, **settings: Any) -> None:
    """Serve OpenAI requests like a vLLM engine would, without a model.

    Prints `listening on HOST:PORT` for each worker once it serves.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        options = WorkerOptions(**settings)
        workers = [replace(options, host=host, port=port) for host, port in map(_address, listen)]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    asyncio.run(_serve(workers, shutdown_timeout))


async def _serve(options: list[WorkerOptions], shutdown_timeout: float) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    workers = []
    try:
        for each in options:
            try:
                workers.append(await start_worker(each))
            except OSError as error:
                raise click.ClickException(f"cannot listen on {each.host}:{each.port}: {error.strerror}") from None
            click.echo(f"listening on {workers[-1].address}")
        await stopping.wait()
    finally:
        await asyncio.gather(*(worker.stop(shutdown_timeout) for worker in workers))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen wants host:port, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
