"""A model without a tokenizer, through real Envoy: its estimate learns from what the workers report."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

from tests.support.client import chat, post
from tests.support.processes import wait_until
from tests.support.stack import MODEL, Stack

ANSWERS = 50
WORDS = "a cache keeps what was computed so that nobody waits for the same answer twice, 123 times".split()    # noqa: SIM905


def declared(bytes_per_token: float, **switchyard: Any) -> dict[str, Any]:
    """The simulated engine has four bytes a token."""
    model = {"name": MODEL, "tokenizer": {"estimate": {"bytesPerToken": bytes_per_token}}}
    return {"server": {"drainTimeout": "100ms"}, "models": [model], "switchyard": switchyard}


def errors(stack: Stack, seed: int, count: int) -> list[float]:
    """Relative ones, of estimates of so many chats unlike any other."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        turns = [
            {"role": role, "content": " ".join(rng.choices(WORDS, k=rng.randint(10, 300)))}
            for role in ("user", "assistant", "user")[-rng.choice((1, 3)) :]
        ]
        answer = post(stack.port, chat(messages=turns, max_tokens=1))
        told, _, source = (answer.ours("tokens") or "").partition(";source=")
        assert source == "estimate"
        reported = answer.json["usage"]["prompt_tokens"]
        found.append(abs(int(told) - reported) / reported)
    return found


def test_an_estimate_learns_keeps_it_over_a_reload_and_forgets_with_its_settings() -> None:
    with Stack("hybrid", declared(2.0), worker_options=("--prefill-tokens-per-s", "400000")) as stack:
        assert errors(stack, 1, 1)[0] > 0.5
        errors(stack, 2, ANSWERS - 1)
        counted = "eluvix_prompt_token_error_ratio_count"
        wait_until(lambda: stack.metric(counted, model=MODEL, source="estimate") == ANSWERS, "all answers to count")
        assert median(errors(stack, 3, ANSWERS)) < 0.05

        stack.reload(declared(2.0, prefillIsolationThresholdTokens=2000))
        assert median(errors(stack, 4, 10)) < 0.05

        stack.reload(declared(1.5))
        assert errors(stack, 5, 1)[0] > 0.5
        assert stack.metric("eluvix_prompt_token_mismatches_total") == 0
