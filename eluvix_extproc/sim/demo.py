"""`eluvix-extproc demo`: real Envoy, the sidecar and simulated workers on loopback, real traffic, what became of it.

Exit code 0 only when everything that it shows held true.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

import aiohttp
import click

from eluvix_extproc.sim.demo_client import CHAT, Client
from eluvix_extproc.sim.demo_isolation import HEAVY_EVERY_S, LIGHT_STREAMS, Measured, measure
from eluvix_extproc.sim.demo_outage import survive
from eluvix_extproc.sim.demo_requests import HEAVY_TOKENS, Traffic
from eluvix_extproc.sim.demo_stack import ITL_MS, MODEL, PREFILL_TOKENS_PER_S, THRESHOLD, DemoStack, Gateway
from eluvix_extproc.sim.demo_table import Row, Screen
from eluvix_extproc.sim.processes import EnvoyMissing, NotReady, envoy_binary, wait_until

_REQUEST_TIMEOUT_S = 60.0
_T = TypeVar("_T")
_ABOUT_TABLE = """
  -       the answer does not say: nothing known yet, or not a request that the sidecar reads
  ~       not measured on this answer: its worker's mean, or derived from it
  est.    counted by size, as simulated workers have no tokenizer; token ids need none
  cached  prompt tokens that the worker found in its KV cache, by its own usage
  prefix  first 8 digits of x-eluvix-kv-prefix-hash, the same for every turn of a conversation
"""
_ABOUT_COMPARISON = f"""
  Measured by the client. The workers are simulated: a step that only decodes takes {ITL_MS} ms, and a chunk of a
  long prompt makes it longer ({PREFILL_TOKENS_PER_S} tokens/s, up to 2048 at a time), as in engines with chunked
  prefill. Envoy, the sidecar and all that they say to each other are real."""


@click.command()
@click.option("--profile", type=click.Choice(["hybrid", "full-duplex"]), default="hybrid", show_default=True,
              help="How Envoy sends bodies to the sidecar.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Stay up afterwards, until Ctrl-C.")
@click.option("--quick", is_flag=True, help="Fewer requests and a shorter comparison.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; the progress goes to standard error.")
def demo(profile: str, keep: bool, quick: bool, as_json: bool) -> None:
    """Start real Envoy, the sidecar and simulated workers on loopback, send OpenAI traffic through Envoy, print what
    each request got, and stop."""
    for name in [name for name in os.environ if name.startswith("ELUVIX_")]:
        del os.environ[name]   # they would override the configuration that the demo writes
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    screen = Screen(sys.stderr if as_json else sys.stdout)
    problems: list[str] = []
    result: dict[str, Any] = {"profile": profile}
    with DemoStack(profile) as stack:
        try:
            problems = _run(stack, screen, result, quick, keep)
        except KeyboardInterrupt:
            screen.line("\nstopping")
            raise SystemExit(130) from None
        except Exception as error:
            problems = [_reason(error)]
            screen.line()
            screen.problem(problems[0])
        finally:
            if problems and stack.started():
                result["logs"] = str(stack.save_logs())
                screen.line(f"\nlogs of all processes: {result['logs']}")
            signal.signal(signal.SIGINT, signal.SIG_IGN)   # an impatient second Ctrl-C must not leave children behind
    result |= {"held": not problems, "problems": problems}
    if as_json:
        print(json.dumps(result, indent=2))
    raise SystemExit(1 if problems else 0)


def _run(stack: DemoStack, screen: Screen, result: dict[str, Any], quick: bool, keep: bool) -> list[str]:
    """What did not hold."""
    envoy_binary()   # before anything else, since nothing can be shown without it
    began = time.monotonic()
    screen.begin("starting 3 simulated workers, the sidecar and Envoy")
    stack.start_workers("decode", 2)
    screen.tick()
    stack.start_workers("prefill", 1)
    screen.tick()
    gateway = stack.start_gateway("isolated", [("decode", ["decode"]), ("prefill", ["prefill"])])
    screen.line(f" {time.monotonic() - began:.1f} s")

    problems = _first_part(stack, screen, gateway, result, 2 if quick else 4)
    screen.begin("starting a second gateway: all 3 workers in one colocated pool")
    pooled = stack.start_gateway("pooled", [("colocated", ["decode", "prefill"])])
    screen.line()
    problems += _second_part(screen, pooled, gateway, result, 1.5 if quick else 6.0)
    problems += _third_part(stack, screen, pooled, result)
    pooled.stop()
    screen.line()
    if problems:
        return problems
    screen.line(f"Everything above held true ({time.monotonic() - began:.0f} s).")
    return _stay(stack, screen, gateway) if keep else []


def _first_part(stack: DemoStack, screen: Screen, gateway: Gateway, result: dict[str, Any], turns: int) -> list[str]:
    screen.title(f"1. What each request got, by its response headers (heavy: {THRESHOLD} uncached tokens and more)")
    screen.table_head()

    async def send(client: Client) -> Traffic:
        traffic = Traffic(client, stack.worker_names, screen.table_row)
        await traffic.run(turns)
        return traffic

    traffic = _with_client(gateway.url, send)
    screen.line(_ABOUT_TABLE)
    return _noted(result, "requests", traffic.rows)


def _second_part(
    screen: Screen, pooled: Gateway, isolated: Gateway, result: dict[str, Any], seconds: float
) -> list[str]:
    screen.title("2. Readers of light streams while heavy prompts arrive, without and with prefill isolation")
    screen.line(
        f"  same load, same 3 workers: {LIGHT_STREAMS} light streams at a time, a prompt of {HEAVY_TOKENS} tokens "
        f"every {HEAVY_EVERY_S:g} s, for {seconds:g} s"
    )
    off = _phase(screen, pooled, "isolation off (3 colocated)        ", "off", seconds)
    on = _phase(screen, isolated, "isolation on  (2 decode, 1 prefill)", "on ", seconds)
    screen.line()
    for line in _comparison(off, on):
        screen.line(line)
    screen.line(_ABOUT_COMPARISON)
    result["isolation"] = {"off": asdict(off), "on": asdict(on)}
    problems = [f"isolation off: {problem}" for problem in off.problems]
    problems += [f"isolation on: {problem}" for problem in on.problems]
    if on.heavy_isolated != on.heavy:
        problems.append(f"isolation on: {on.heavy - on.heavy_isolated} of {on.heavy} heavy prompts were not isolated")
    if on.itl_p99_ms >= off.itl_p99_ms:
        problems.append(f"ITL p99 is not lower with isolation: {on.itl_p99_ms:.1f} against {off.itl_p99_ms:.1f} ms")
    for problem in problems:
        screen.problem(problem)
    return problems


def _third_part(stack: DemoStack, screen: Screen, gateway: Gateway, result: dict[str, Any]) -> list[str]:
    screen.title("3. The second gateway's sidecar is killed (SIGKILL): Envoy goes on without it")
    screen.table_head()
    hybrid = result["profile"] == "hybrid"

    def noticed() -> None:
        if not hybrid:   # only then does this mode let requests through
            wait_until(lambda: not gateway.envoy.sidecar_healthy(), "Envoy to find the sidecar gone")

    rows = _with_client(
        gateway.url,
        lambda client: survive(client, gateway.sidecar.kill, noticed, hybrid, stack.worker_names),
    )
    for row in rows:
        screen.table_row(row)
    return _noted(result, "outage", rows)


def _noted(result: dict[str, Any], key: str, rows: list[Row]) -> list[str]:
    result[key] = [asdict(row) for row in rows]
    return [f"{row.request}: {problem}" for row in rows for problem in row.problems]


def _phase(screen: Screen, gateway: Gateway, title: str, label: str, seconds: float) -> Measured:
    screen.begin(title)
    measured = _with_client(gateway.url, lambda client: measure(client, label, seconds, screen.tick))
    screen.line(f" {measured.gaps} tokens of light streams, {measured.heavy} heavy prompts")
    return measured


def _comparison(off: Measured, on: Measured) -> list[str]:
    lines = [f"  {'':34}{'off':>12}{'on':>12}{'off / on':>12}"]
    for name, before, after in (
        ("light streams: ITL p50", off.itl_p50_ms, on.itl_p50_ms),
        ("light streams: ITL p99", off.itl_p99_ms, on.itl_p99_ms),
        ("light streams: longest gap", off.itl_max_ms, on.itl_max_ms),
        ("heavy prompts: TTFT p50", off.heavy_ttft_p50_ms, on.heavy_ttft_p50_ms),
    ):
        ratio = f"{before / after:.1f} x" if after else "-"
        lines.append(f"  {name:34}{before:9.1f} ms{after:9.1f} ms{ratio:>12}")
    return lines


def _stay(stack: DemoStack, screen: Screen, gateway: Gateway) -> list[str]:
    body = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "Hello"}]})
    screen.line(f"\nStill running; Ctrl-C stops it.\n\n  Envoy       {gateway.url}")
    screen.line(f"  live page   {gateway.sidecar.admin}/\n  metrics     {gateway.sidecar.admin}/metrics")
    screen.line(f"  Envoy admin {gateway.envoy.admin}/\n")
    screen.line(f"  curl -i {gateway.url}{CHAT} -H 'content-type: application/json' \\\n    -d '{body}'\n")
    all_of_them = stack.running()
    try:
        while stack.running() == all_of_them:
            time.sleep(0.5)
    except KeyboardInterrupt:
        screen.line("\nstopping")
        return []
    return [f"{name} ended by itself" for name in all_of_them - stack.running()]


def _reason(error: Exception) -> str:
    if isinstance(error, (EnvoyMissing, NotReady)):
        return str(error)
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _with_client(url: str, use: Callable[[Client], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            return await use(Client(url, session, MODEL))

    return asyncio.run(run())
