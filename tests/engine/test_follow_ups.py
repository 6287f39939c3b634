"""A conversation that goes on: one prefix hash, and the engine has cached what we said it would."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.engine.engine import BLOCK_SIZE
from tests.engine.gateway import Gateway, Told, told, usage

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("salted", [False, True], ids=["plain", "salted"])
def test_follow_up_turns(gateway: Gateway, salted: bool) -> None:
    """Predicted cached tokens are what the engine reports as cached, but for the last block, which is not whole."""
    mark = uuid.uuid4().hex
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"You are {mark}. " + "Answer at length, with care, in the user's tongue. " * 20}
    ]
    fields: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, **({"cache_salt": mark} if salted else {})}
    hashes: set[str | None] = set()
    predicted: list[int] = []
    delivered: list[int] = []
    for turn in range(5):
        messages.append({"role": "user", "content": f"Question {turn} of {mark}: " + "и так далее, 等等… " * 15})
        answer = gateway.ask(CHAT, {"messages": messages, **fields})
        assert told(answer) == Told(usage(answer)["prompt"], "exact")
        hashes.add(answer.ours("kv-prefix-hash"))
        predicted.append(gateway.exchange(answer)["cached_predicted"])
        delivered.append(usage(answer)["cached"])
        messages.append({"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]})
    assert len(hashes) == 1
    assert (predicted[0], delivered[0]) == (0, 0)
    for said, was in zip(predicted[1:], delivered[1:], strict=True):
        assert said > 0
        assert said - BLOCK_SIZE < was
    assert delivered == sorted(delivered)
