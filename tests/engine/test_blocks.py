"""Our block hashes are the engine's own: it announces every block that we foresee, and no other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from eluvix_extproc.core.blocks import Extra, vllm_chain
from eluvix_extproc.core.prompt import Api
from tests.engine.engine import BLOCK_SIZE
from tests.engine.gateway import Gateway, Told, told, usage
from tests.engine.kv_events import Block, Subscriber
from tests.support.processes import wait_until

CHAT = "/v1/chat/completions"
LONG = "Съешь же ещё этих мягких французских булок; 今日は良い天気ですね。 for (;;) { x += 1; }\n"


@pytest.fixture(scope="module")
def subscribers(gateways: dict[str, Gateway]) -> Iterator[dict[str, Subscriber]]:
    """One for each engine, known to receive."""
    found: dict[str, Subscriber] = {}
    try:
        for name, gateway in gateways.items():
            found[name] = Subscriber(gateway.engine.events).__enter__()
            wait_until(lambda g=gateway, s=found[name]: receives(g, s), f"events of {name}")  # type: ignore[misc]
        yield found
    finally:
        for subscriber in found.values():
            subscriber.__exit__(None, None, None)


def receives(gateway: Gateway, subscriber: Subscriber) -> bool:
    gateway.ask_engine("/v1/completions", {"prompt": f"{uuid.uuid4().hex} " * BLOCK_SIZE, "max_tokens": 1})
    return bool(subscriber.sequences())


@pytest.fixture
def subscriber(subscribers: dict[str, Subscriber], gateway: Gateway) -> Subscriber:
    return subscribers[gateway.exact]


class Watch:
    """What an engine stores while a test asks it, against what we foresee of each answer."""

    def __init__(self, gateway: Gateway, subscriber: Subscriber) -> None:
        self._gateway = gateway
        self._subscriber = subscriber
        self._before = len(subscriber.blocks())
        self._foreseen: dict[int, tuple[int, ...]] = {}

    def foresee(self, ids: list[int], salt: str = "", adapter: tuple[str, str] | None = None) -> None:
        """Of a prompt with all that was generated but the last token, whose KV nobody has computed."""
        extra = Extra(salt=salt, adapter=adapter)
        hashes = vllm_chain(ids, BLOCK_SIZE, seed=self._gateway.engine.hash_seed, extra=extra)
        assert len(hashes) == len(ids) // BLOCK_SIZE > 0
        for number, digest in enumerate(hashes):
            self._foreseen[digest] = tuple(ids[number * BLOCK_SIZE : (number + 1) * BLOCK_SIZE])

    def check(self) -> None:
        wait_until(lambda: self._foreseen.keys() <= {block.hash for block in self._subscriber.blocks()}, "the blocks")
        stored: list[Block] = self._subscriber.blocks()[self._before :]
        assert {block.hash: block.tokens for block in stored} == self._foreseen
        known = {block.hash for block in stored}
        assert all(block.parent is None or block.parent in known for block in stored)
        sequences = self._subscriber.sequences()
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


@pytest.fixture
def watch(gateway: Gateway, subscriber: Subscriber) -> Watch:
    return Watch(gateway, subscriber)


def test_chats_salted_and_not(gateway: Gateway, watch: Watch) -> None:
    """From our own reading of the body to the hash: what is generated fills blocks as well."""
    for salt in ("", uuid.uuid4().hex, "соль 🧂"):
        messages = [{"role": "user", "content": f"{uuid.uuid4().hex} {LONG * 5}"}]
        fields: dict[str, Any] = {"messages": messages, **({"cache_salt": salt} if salt else {})}
        answer = gateway.ask(
            CHAT, {**fields, "max_tokens": BLOCK_SIZE + 9, "ignore_eos": True, "return_token_ids": True}
        )
        ours = gateway.our_own.ids(Api.OPENAI_CHAT, fields)
        assert ours == answer.json["prompt_token_ids"]
        watch.foresee((ours + answer.json["choices"][0]["token_ids"])[:-1], salt)
    watch.check()


def test_follow_ups_share_what_they_have_in_common(gateway: Gateway, watch: Watch) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"{uuid.uuid4().hex} {LONG * 3}"}]
    for turn in range(4):
        messages.append({"role": "user", "content": f"{turn}. {LONG * 2}"})
        fields = {"messages": messages, "max_tokens": 2, "ignore_eos": True, "return_token_ids": True}
        answer = gateway.ask(CHAT, fields)
        ours = gateway.our_own.ids(Api.OPENAI_CHAT, fields)
        assert ours == answer.json["prompt_token_ids"]
        watch.foresee((ours + answer.json["choices"][0]["token_ids"])[:-1])
        messages.append({"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]})
    watch.check()


@pytest.mark.parametrize("tokens", [BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE - 1, 3 * BLOCK_SIZE])
def test_given_ids(gateway: Gateway, watch: Watch, tokens: int) -> None:
    """At the edges of blocks; the other API is given the ids in reverse, so that nothing is shared."""
    ids = [5 + byte for byte in uuid.uuid4().bytes] * 8
    ids = ids[:tokens]
    sampling = {"max_tokens": 2, "ignore_eos": True}
    completion = gateway.ask("/v1/completions", {"prompt": ids, "return_token_ids": True, **sampling})
    assert completion.status == 200, completion.body
    watch.foresee((ids + completion.json["choices"][0]["token_ids"])[:-1])
    backwards = ids[::-1]
    generated = gateway.ask(
        "/inference/v1/generate", {"token_ids": backwards, "sampling_params": sampling, "cache_salt": "pepper"}
    )
    assert generated.status == 200, generated.body
    watch.foresee((backwards + generated.json["choices"][0]["token_ids"])[:-1], "pepper")
    watch.check()


def test_an_adapter(text_turns: Gateway, subscribers: dict[str, Subscriber]) -> None:
    """Its blocks are its own, salted or not, though the tokens are the model's."""
    engine = text_turns.engine
    watch = Watch(text_turns, subscribers[text_turns.exact])
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": f"{uuid.uuid4().hex} {LONG * 3}"}]}
    ours = text_turns.our_own.ids(Api.OPENAI_CHAT, fields)
    for model, salt in ((engine.model, ""), (engine.adapted, ""), (engine.adapted, "salt")):
        salted = {"cache_salt": salt} if salt else {}
        answer = text_turns.ask(CHAT, {**fields, **salted, "model": model, "max_tokens": 1})
        assert told(answer) == Told(len(ours), "exact")
        assert usage(answer)["cached"] == 0
        watch.foresee(ours, salt, (engine.adapted, str(engine.adapter)) if model == engine.adapted else None)
    watch.check()


def test_responses_and_messages(gateway: Gateway, watch: Watch) -> None:
    """These do not tell what they generate: with one token there is nothing that would fill a block."""
    text = f"{uuid.uuid4().hex} {LONG * 4}"
    for api, path, fields in (
        (Api.OPENAI_RESPONSES, "/v1/responses", {"input": text, "max_output_tokens": 1}),
        (Api.ANTHROPIC_MESSAGES, "/v1/messages", {
            "messages": [{"role": "user", "content": LONG}], "system": f"As for {text}", "max_tokens": 1,
        }),
    ):  # fmt: skip
        assert gateway.ask(path, fields).status == 200
        watch.foresee(gateway.our_own.ids(api, fields))
    watch.check()
