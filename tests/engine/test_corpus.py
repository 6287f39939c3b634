"""Every conversation of the corpus: the header's count is `usage.prompt_tokens`, our ids are the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from eluvix_extproc.core.prompt import Api
from tests.engine.corpus import conversations
from tests.engine.gateway import Gateway, Told, told, usage

CHAT = "/v1/chat/completions"
CONVERSATIONS = conversations()
# What /tokenize reads of a chat; a conversation with other members is left to the render endpoint.
TOKENIZED = {
    "messages", "tools",
    "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "add_special_tokens",
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(CONVERSATIONS)))
def test_a_conversation(gateway: Gateway, number: int) -> None:
    fields: dict[str, Any] = {**CONVERSATIONS[number], "max_tokens": 1}
    rendered = gateway.ask_engine(f"{CHAT}/render", fields)
    answer = gateway.ask(CHAT, fields)
    assert answer.status == rendered.status
    ids = rendered.json["token_ids"]
    assert told(answer) == Told(usage(answer)["prompt"], "exact") == Told(len(ids), "exact")
    assert gateway.our_own.ids(Api.OPENAI_CHAT, fields) == ids


@pytest.mark.parametrize("number", [at for at, fields in enumerate(CONVERSATIONS) if fields.keys() <= TOKENIZED])
def test_ids_are_those_of_tokenize(gateway: Gateway, number: int) -> None:
    tokenized = gateway.ask_engine("/tokenize", CONVERSATIONS[number])
    assert tokenized.status == 200, tokenized.body
    assert gateway.our_own.ids(Api.OPENAI_CHAT, CONVERSATIONS[number]) == tokenized.json["tokens"]
