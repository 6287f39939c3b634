"""The demo's second part: what readers of streams notice of heavy prompts, without and with prefill isolation.

The same load meets the same workers twice. Light streams run side by side, one after the other each, while heavy
prompts arrive at a fixed pace; every gap between two tokens of a light stream is taken by the client's clock.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eluvix_extproc.sim.demo_client import Answer, Client, prose
from eluvix_extproc.sim.demo_requests import HEAVY_TOKENS

LIGHT_STREAMS = 6
LIGHT_ANSWER_TOKENS = 60
HEAVY_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds. `gaps` is the number of gaps between tokens that the ITL figures are taken over."""

    itl_p50_ms: float
    itl_p99_ms: float
    itl_max_ms: float
    gaps: int
    heavy_ttft_p50_ms: float
    heavy: int
    heavy_isolated: int
    problems: tuple[str, ...]


async def measure(client: Client, label: str, seconds: float, tick: Callable[[], None]) -> Measured:
    """`label` makes the prompts differ from those of another run, so that both meet caches without them."""
    ends = time.monotonic() + seconds
    light: list[Answer] = []
    heavy: list[Answer] = []

    async def read_streams(reader: int) -> None:
        number = 0
        while time.monotonic() < ends:
            number += 1
            prompt = f"{label} reader {reader} question {number}: what is a good name for a boat?"
            light.append(await client.chat(prompt, stream=True, max_tokens=LIGHT_ANSWER_TOKENS))

    async def send_heavy(number: int) -> None:
        prompt = prose(HEAVY_TOKENS, f"{label} report {number}.")
        heavy.append(await client.chat(prompt, stream=True, max_tokens=4))

    async with asyncio.TaskGroup() as group:
        for reader in range(LIGHT_STREAMS):
            group.create_task(read_streams(reader))
        number = 0
        while time.monotonic() < ends:
            number += 1
            group.create_task(send_heavy(number))
            tick()
            await asyncio.sleep(HEAVY_EVERY_S)
    return _measured(light, heavy)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _measured(light: list[Answer], heavy: list[Answer]) -> Measured:
    gaps = [gap * 1000 for answer in light for gap in answer.gaps_s]
    ttft = [(answer.token_at[0] - answer.sent_at) * 1000 for answer in heavy if answer.token_at]
    failed = [answer for answer in (*light, *heavy) if answer.status != 200 or not answer.whole or not answer.token_at]
    problems = [f"{len(failed)} of {len(light) + len(heavy)} requests got no whole answer"] if failed else []
    return Measured(
        itl_p50_ms=percentile(gaps, 0.5),
        itl_p99_ms=percentile(gaps, 0.99),
        itl_max_ms=max(gaps, default=0.0),
        gaps=len(gaps),
        heavy_ttft_p50_ms=percentile(ttft, 0.5),
        heavy=len(heavy),
        heavy_isolated=sum(answer.headers.get("x-eluvix-pd-role") == "prefill" for answer in heavy),
        problems=tuple(problems),
    )
