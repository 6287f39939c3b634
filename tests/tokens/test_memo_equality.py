"""Counting with a memo, in whatever state it is, gives what encoding the whole rendering gives."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from eluvix_extproc.core.prompt import Message, Prompt
from eluvix_extproc.core.recall import Heads
from eluvix_extproc.tokens.exact import ExactCounter, from_file
from tests.tokens.prompts import TINY, Oracle, chat, completion, message, unpacked

# Added tokens whole and broken, and all that a tokenizer treats by its neighbours.
FRAGMENTS = st.sampled_from([
    "<|turn|>", "<|end|>", "<|end|", "|>", "<|", "<|bos|>", "<note>", "<late>", "<", "|", "user", "assistant",
    " ", "  ", "\n", "\n\n", "\t", "word", " word", "Words", "'s", "123", "4567", "é", "e\u0301", "中文", "🇨🇭",
    "👩‍👩‍👧", "def f():\n    pass", "</think>", "<think>", "<0x0A>",
])  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=12).map("".join) | st.text(max_size=20)
TOOLS = st.none() | st.just([{"type": "function", "function": {"name": "f"}}])
HISTORY = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), TEXTS), min_size=1, max_size=8)

KEYS = Heads(0, seed=5)
MEMO_BYTES = {"off": 0, "starved": 3_000, "plenty": 8 << 20}


@pytest.fixture(scope="module", params=MEMO_BYTES)
def counter(request: pytest.FixtureRequest, library: str) -> ExactCounter:
    """One counter for all examples, so that its memo holds what earlier ones left."""
    return from_file(TINY, memo_bytes=MEMO_BYTES[request.param], seed=7, allow_fastokens=library == "fastokens")


@settings(max_examples=120, deadline=None)
@given(history=HISTORY, tools=TOOLS, system=st.none() | TEXTS, answer=st.integers(0, 3))
def test_a_conversation_that_grows_is_counted_as_a_whole_at_every_turn(
    counter: ExactCounter, oracle: Oracle, history: Any, tools: Any, system: str | None, answer: int
) -> None:
    turns = [message("system", system)] if system is not None else []
    dumped = tools and [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]
    for role, text in history:
        turns.append(message(role, text))
        check(counter, oracle, turns, tools, dumped)
    # A retry of the last turn, then a branch of the conversation.
    check(counter, oracle, turns, tools, dumped)
    check(counter, oracle, [*turns[:-1], message("user", f"instead {answer}")], tools, dumped)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_texts_are_counted_as_a_whole(counter: ExactCounter, oracle: Oracle, texts: list[str]) -> None:
    for text in texts:
        assert unpacked(counter.count(completion(text)).ids) == oracle.ids(text, specials=True)


@settings(max_examples=60, deadline=None)
@given(history=HISTORY)
def test_boundaries_do_not_depend_on_the_memo(counter: ExactCounter, history: Any) -> None:
    bare = from_file_once()
    turns: list[Message] = []
    for role, text in history:
        turns.append(message(role, text))
        count = counter.count(chat(*turns))
        assert count == bare.count(chat(*turns))
        assert list(count.per_message) == sorted(count.per_message)
        assert not count.per_message or count.per_message[-1] <= count.total


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
OPTIONS = st.fixed_dictionaries({
    "tools": TOOLS,
    "kwargs": st.sampled_from([None, {"thinking": False}, {"bos_token": "<|turn|>"}, {"tools": [{"a": 1}]}]),
    "opened": st.sampled_from([{}, {"add_generation_prompt": False}]),
    "continued": st.booleans(),
    "keys": st.booleans(),
})  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "call", "parts", "developer", "branch"]), TEXTS, OPTIONS),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120, deadline=None)
@given(steps=STEPS)
def test_whatever_is_asked_of_a_conversation_the_memo_changes_nothing(counter: ExactCounter, steps: Any) -> None:
    for prompt in asked(steps):
        assert counter.count(prompt) == from_file_once().count(prompt)
        assert counter.cost_s(prompt) > 0


@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_threads_that_share_a_memo_change_nothing(counter: ExactCounter, steps: Any) -> None:
    prompts = asked(steps) * 3
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(counter.count, prompts))
    assert counts == [from_file_once().count(prompt) for prompt in prompts]


def asked(steps: Any) -> list[Prompt]:
    """The prompts of a conversation that grows and forks, asked each time in another way."""
    turns: list[Message] = []
    prompts = []
    for kind, text, options in steps:
        if kind == "branch":
            turns = [*turns[: len(turns) // 2], message("user", text)]
        elif kind == "call":
            turns += [message("assistant", None, tool_calls=[CALL]), message("tool", text, tool_call_id="1")]
        elif kind == "parts":
            turns.append(message("user", [{"type": "text", "text": text}, {"type": "text", "text": "x"}]))
        else:
            turns.append(message(kind, text))
        sent = [structs.replace(each, key=KEYS.key(each.raw)) for each in turns] if options["keys"] else turns
        ending = options["opened"]
        if options["continued"]:
            ending = {"add_generation_prompt": False, "continue_final_message": True}
        prompts.append(chat(*sent, tools=options["tools"], kwargs=options["kwargs"], **ending))
    return prompts


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_a_tokenizer_that_marks_the_start_of_the_text_is_encoded_whole(tmp_path: Path, scheme: str) -> None:
    spec = json.loads(TINY.read_text())
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    spec["model"]["vocab"] = {**spec["model"]["vocab"], "▁": 3000}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    path.with_name("chat_template.jinja").write_text(TINY.with_name("chat_template.jinja").read_text())
    path.with_name("tokenizer_config.json").write_text(TINY.with_name("tokenizer_config.json").read_text())
    counter, oracle = from_file(path), Oracle(path)
    turns = [message("user", "one two"), message("assistant", " three"), message("user", "four")]
    for size in (1, 3):
        count = counter.count(chat(*turns[:size]))
        assert unpacked(count.ids) == oracle.chat_ids(chat(*turns[:size]))
        assert (count.per_message == ()) == (scheme == "first")


def test_a_template_that_rewrites_earlier_turns_is_followed(library: str, tmp_path: Path) -> None:
    source = "{% for m in messages %}<|turn|>{{ loop.revindex }} {{ m.content }}<|end|>{% endfor %}"
    path = tmp_path / "revindex.jinja"
    path.write_text(source)
    counter, oracle = from_file(TINY, path, allow_fastokens=library == "fastokens"), Oracle(template=source)
    turns = [message("user", f"text {n}") for n in range(6)]
    for size in range(1, 7):
        prompt = chat(*turns[:size])
        assert unpacked(counter.count(prompt).ids) == oracle.chat_ids(prompt)


def check(counter: ExactCounter, oracle: Oracle, turns: list[Message], tools: Any, dumped: Any) -> None:
    prompt = chat(*turns, tools=tools)
    count = counter.count(prompt)
    assert count.exact
    assert unpacked(count.ids) == oracle.chat_ids(prompt, tools=dumped)
    assert len(count.per_message) in (0, len(turns))


_bare: list[ExactCounter] = []


def from_file_once() -> ExactCounter:
    if not _bare:
        _bare.append(from_file(TINY, memo_bytes=0, allow_fastokens=False))
    return _bare[0]
