"""The demo's third part: the sidecar is killed, and nobody loses an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eluvix_extproc.sim.demo_client import Answer, Client
from eluvix_extproc.sim.demo_table import Row, row


async def survive(
    client: Client, kill: Callable[[], None], noticed: Callable[[], None], mid_stream: bool, workers: Mapping[str, str]
) -> list[Row]:
    """`kill` ends the sidecar, `noticed` returns when Envoy may be asked without it. `mid_stream` kills it while it
    reads a stream, which Envoy survives in hybrid mode only."""
    rows = []
    if mid_stream:
        answer = await client.chat("Tell me a story.", stream=True, max_tokens=50, on_first_token=kill)
        rows.append(row("stream, sidecar killed", answer, workers, problems_of(answer, tokens=49)))
    else:
        kill()
    noticed()
    answer = await client.chat("And another one.", max_tokens=20)
    ours = [header for header in answer.headers if header.lower().startswith("x-eluvix-")]
    problems = (*problems_of(answer), *(f"there is no sidecar, yet there is {header}" for header in ours))
    rows.append(row("chat, without a sidecar", answer, workers, problems))
    return rows


def problems_of(answer: Answer, tokens: int = 0) -> tuple[str, ...]:
    if answer.status != 200:
        return (f"status {answer.status}, not 200",)
    if not answer.whole or not answer.text or len(answer.token_at) < tokens:
        return (f"the answer is not whole: {len(answer.token_at)} tokens of {tokens}",)
    return ()
