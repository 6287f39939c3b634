"""Volatile lines of system prompts, and the names that clients give to conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.hints import HEAD_LINES, LINE_CHARS, Session, VolatileLines
from eluvix_extproc.core.prefix import chain
from eluvix_extproc.core.prompt import Api, PrefixChain, Prompt, TokenCount
from eluvix_extproc.prompt import parse

DATES = VolatileLines(["^Today is ", "^x-billing: "])
COUNT = TokenCount(100, False)


def chat(system: Any, user: str = "Hi", **fields: Any) -> Prompt:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    return parse(Api.OPENAI_CHAT, body, body_bytes=len(body))


def of(prompt: Prompt, volatile: VolatileLines | None = DATES) -> PrefixChain:
    return chain(prompt, COUNT, model="m", adapter="", volatile=volatile)


def test_a_changing_date_leaves_the_key_as_it_is() -> None:
    monday, tuesday = (of(chat(f"You are an agent.\nToday is {day}.\nBe brief.")) for day in ("Monday", "Tuesday"))
    assert monday.root == tuesday.root
    assert monday.root == of(chat("You are an agent.\nBe brief."), None).root
    assert monday.steadied and tuesday.steadied


def test_the_points_keep_what_an_engine_caches() -> None:
    """Other tokens are another prefix: nothing is claimed to be cached that is not."""
    monday, tuesday = (of(chat(f"Today is {day}.\nBe brief.")) for day in ("Monday", "Tuesday"))
    assert not {point.key for point in monday.points} & {point.key for point in tuesday.points}
    assert monday.points == of(chat("Today is Monday.\nBe brief."), None).points


def test_text_parts_are_cleaned_too() -> None:
    def parts(billing: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": f"x-billing: {billing}"}, {"type": "text", "text": "You are an agent."}]

    assert of(chat(parts("a=1"))).root == of(chat(parts("b=2"))).root
    assert of(chat(parts("a=1"))).root != of(chat([parts("")[1]])).root      # an emptied part is still a part


@pytest.mark.parametrize(
    "other",
    [
        {"system": "You are another agent.\nToday is Monday."},
        {"system": "You are an agent.\nToday is Monday.", "user": "Ho"},
        {"system": "You are an agent.\n  Today is Monday."},    # the pattern is anchored
        {"system": "You are an agent.\nToday is Monday.", "cache_salt": "s"},
    ],
)
def test_everything_else_still_counts(other: dict[str, str]) -> None:
    assert of(chat(**other)).root != of(chat("You are an agent.\nToday is Monday.")).root


def test_only_the_head_and_only_the_system_is_looked_at() -> None:
    deep = "\n".join(["line"] * HEAD_LINES)
    assert not of(chat(f"{deep}\nToday is Monday.")).steadied
    assert of(chat("\n".join(["line"] * (HEAD_LINES - 1)) + "\nToday is Monday.")).steadied
    assert not of(chat("Be brief.", "Today is Monday.")).steadied
    assert not of(chat(" " * LINE_CHARS + "x-billing: 1")).steadied


def test_a_conversation_without_such_lines_is_not_touched() -> None:
    prompt = chat("Be brief.")
    assert of(prompt) == of(prompt, None)
    assert DATES.steady(prompt.messages[0]) is prompt.messages[0].canonical


@given(st.lists(st.text(alphabet="ab\r\n ", max_size=8), max_size=30))
def test_taking_lines_out_is_done_once_for_all(lines: list[str]) -> None:
    """What is left has no volatile line in its first lines that was looked at, and all others in their order."""
    text = "\n".join(lines)
    volatile = VolatileLines(["^a"])
    prompt = chat(text)
    canonical = volatile.steady(prompt.messages[0])
    size = int.from_bytes(canonical[-9:-1], "little")
    split = text.split("\n")
    expected = [line for at, line in enumerate(split) if at >= HEAD_LINES or not line.startswith("a")]
    assert [line for line in canonical[:size].decode().split("\n") if line] == [line for line in expected if line]


def test_the_first_name_that_a_client_sent_counts() -> None:
    session = Session(("x-session-id", "x-other"), ("prompt_cache_key", "user"))
    both = chat("s", prompt_cache_key="k", user="u")
    named = session.digest({"x-session-id": "1", "x-other": "2"}, both, model="m")
    assert named == session.digest({"x-session-id": "1"}, None, model="m") != b""
    assert session.digest({"x-other": "1"}, None, model="m") != named
    assert session.digest({}, both, model="m") == session.digest({}, chat("x", prompt_cache_key="k"), model="m")
    assert session.digest({}, chat("s", user="u"), model="m") == session.digest({}, chat("t", user="u"), model="m")
    assert session.digest({}, chat("s"), model="m") == b""
    assert session.digest({"x-session-id": ""}, None, model="m") == b""


def test_names_are_equal_or_they_are_not() -> None:
    session = Session(("x-session-id",), ())
    seen = {
        session.digest({"x-session-id": value}, None, model=model, salt=salt)
        for value in ("a", "ab", "a" * 2000, "b\udcff")
        for model in ("m", "n")
        for salt in ("", "s")
    }
    assert len(seen) == 16
