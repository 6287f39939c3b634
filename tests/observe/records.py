"""Records for tests: one good exchange, to be changed by keyword."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from eluvix_extproc.core.fleet import Role
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.core.record import Outcome, Record, Sized, Source
from eluvix_extproc.core.switchyard.types import Decision

SIZED = Sized(model="llama-3.3-70b", tokens=4_213, exact=True, prefix_hash="ab" * 32, kv_bytes=690_257_920)
DECISION = Decision(
    role=Role.DECODE,
    pool="decode",
    cluster="llm-decode",
    workers=("10.0.0.1:8000", "10.0.0.2:8000"),
    reasons=("affinity:hit=4096", "isolation:uncached=117<4096"),
    cached_tokens=4_096,
    uncached_tokens=117,
)
STREAMED = Record(
    outcome=Outcome.COMPLETED,
    method="POST",
    path="/v1/chat/completions",
    api=Api.OPENAI_CHAT,
    request_id="8a1e0c2e-7d7c-4f5e-9d6a-0a3f8be8a0c1",
    started=100.0,
    duration_s=2.5,
    status=200,
    stream=True,
    sized=SIZED,
    decision=DECISION,
    decision_s=0.003,
    served_worker="10.0.0.1:8000",
    served_pool="decode",
    attempts=1,
    request_bytes=20_000,
    response_bytes=9_000,
    ttft_s=0.2,
    ttft_source=Source.MEASURED,
    itl_s=0.02,
    completion_tokens=116,
    completion_exact=True,
    prompt_tokens_reported=4_213,
    delivered_cached_tokens=4_080,
)


def record(**changes: Any) -> Record:
    return replace(STREAMED, **changes)


def sized(**changes: Any) -> Sized:
    return replace(SIZED, **changes)


def decision(**changes: Any) -> Decision:
    return replace(DECISION, **changes)
