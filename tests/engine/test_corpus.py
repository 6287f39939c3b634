"""Every conversation of the corpus: the header's count is `usage.prompt_tokens`, our ids are the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from eluvix_extproc.core.prompt import Api
from tests.engine.corpus import TEXTS, assistant, conversations, user
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


def test_a_conversation_that_grows(gateway: Gateway) -> None:
    """Each turn is counted from what is remembered of the one before."""
    messages = []
    for question, answered in zip(TEXTS.values(), reversed(TEXTS.values()), strict=True):
        messages.append(user(question))
        answer = gateway.ask(CHAT, {"messages": messages, "max_tokens": 1})
        assert told(answer) == Told(usage(answer)["prompt"], "exact")
        messages.append(assistant(answered))


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if text])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_text_in_every_api(gateway: Gateway, path: str, name: str) -> None:
    fields: dict[str, Any] = {
        "/v1/completions": {"prompt": TEXTS[name], "max_tokens": 1},
        "/v1/responses": {"input": TEXTS[name], "max_output_tokens": 1},
        "/v1/messages": {"messages": [user(TEXTS[name])], "max_tokens": 1},
    }[path]
    answer = gateway.ask(path, fields)
    assert told(answer) == Told(usage(answer)["prompt"], "exact")
