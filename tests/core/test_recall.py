from __future__ import annotations

import json
from collections.abc import Hashable
from sys import getsizeof
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import Message
from eluvix_extproc.core.recall import (
    KEY_BYTES,
    MOST_NEW,
    STEP_BYTES,
    Beginning,
    Heads,
    beginning,
    joined_keys,
    longest,
    message_bytes,
)


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw]


def read(raw: bytes) -> Message:
    return Message("user", b"c" + raw, raw.decode(), raw, 0, HEADS.key(raw))


HEADS = Heads(0, seed=7)
LONG = [{"role": "user", "content": "long " * 3_000}, {"role": "assistant", "content": "fine"}]
NEXT = [{"role": "user", "content": "and then?"}]


def dumped(messages: list[Any], **dumps: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 5}, **dumps).encode()


def keep(heads: Heads, body: bytes, known: Beginning | None = None) -> tuple[Message, ...]:
    messages = tuple(read(bytes(raw)) for raw in msgspec.json.decode(body, type=_Body).messages)
    heads.keep(body, heads.find(body)[1], messages, known, None)
    return messages


def gone_on(heads: Heads, body: bytes) -> tuple[Message, ...] | None:
    """The messages as they are read from a shortened body."""
    known, _ = heads.find(body)
    short = known.shorten(body) if known else None
    if known is None or short is None:
        return None
    new = [read(bytes(raw)) for raw in msgspec.json.decode(short, type=_Body).messages]
    return (*known.messages, *new) if known.new_end(short, [each.raw for each in new]) is not None else None


@pytest.mark.parametrize("dumps", [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])
def test_a_body_that_goes_on_is_read_from_where_it_does(dumps: Any) -> None:
    heads = Heads(1 << 20, seed=7)
    kept = keep(heads, dumped(LONG, **dumps))
    body = dumped(LONG + NEXT, **dumps)
    found = gone_on(heads, body)
    assert found is not None and found[:2] == kept and found[0] is kept[0]
    assert [json.loads(each.raw) for each in found] == LONG + NEXT


def test_the_same_body_again_has_no_new_messages() -> None:
    heads = Heads(1 << 20, seed=7)
    kept = keep(heads, dumped(LONG))
    assert gone_on(heads, dumped(LONG)) == kept


@pytest.mark.parametrize(
    "body",
    [
        dumped([{**LONG[0], "content": "wrong " * 3_000}, *NEXT]),
        dumped([LONG[0], {**LONG[1], "content": "fine!"}, *NEXT]),
        dumped(LONG + NEXT).replace(b'"m"', b'"n"'),
        dumped(LONG + NEXT)[:-1] + b',"messages":[{"role":"user","content":"said twice"}]}',
        dumped(LONG + NEXT)[:-1] + b',"\\u006dessages":[{"role":"user","content":"said twice"}]}',
    ],
    ids=["other head", "other turn", "other model", "messages twice", "messages twice, escaped"],
)
def test_another_body_is_read_whole(body: bytes) -> None:
    heads = Heads(1 << 20, seed=7)
    keep(heads, dumped(LONG))
    assert gone_on(heads, body) is None


def test_a_comma_without_a_message_is_not_taken_away() -> None:
    heads = Heads(1 << 20, seed=7)
    keep(heads, dumped(LONG))
    assert gone_on(heads, dumped(LONG).replace(b"}],", b"}, ],")) is None


@pytest.mark.parametrize("start", [b'{"x":[1],', b'{"a":"\\u0062",', b'{"x":"messages",'])
def test_messages_behind_other_than_plain_members_are_not_kept(start: bytes) -> None:
    heads = Heads(1 << 20, seed=7)
    keep(heads, start + dumped(LONG)[1:])
    assert heads.used_bytes == 0


def test_a_short_body_is_not_kept() -> None:
    heads = Heads(1 << 20, seed=7)
    keep(heads, dumped(NEXT))
    assert heads.used_bytes == 0


def test_conversations_with_one_system_prompt_are_told_apart() -> None:
    heads = Heads(1 << 20, seed=7)
    system = {"role": "system", "content": "s" * (2 * STEP_BYTES)}
    talks = [[system, {"role": "user", "content": f"question {number}"}] for number in range(4)]
    for talk in talks:
        keep(heads, dumped(talk))
    for talk in talks:
        found = gone_on(heads, dumped(talk + NEXT))
        assert found is not None and [json.loads(each.raw) for each in found] == talk + NEXT


def test_what_is_kept_is_bounded_and_a_conversation_is_kept_once() -> None:
    heads = Heads(150_000, seed=7)
    for number in range(20):
        talk = [{"role": "user", "content": f"{number} " * 5_000}]
        for _ in range(3):
            keep(heads, dumped(talk), heads.find(dumped(talk))[0])
            assert heads.used_bytes <= 150_000
            talk = [*talk, *NEXT]
    assert heads.used_bytes > 30_000
    message = read(b'{"role":"user"}')
    assert message_bytes(message) > getsizeof(message.raw) + getsizeof(message.text) + getsizeof(message.canonical)


CONTENTS = st.sampled_from(["x", '"messages"', "}],{", "\\u0041", "é", "y" * 5_000, "z" * 9_000, "[{"])


@settings(max_examples=80, deadline=None)
@given(
    first=st.lists(CONTENTS, min_size=1, max_size=4),
    second=st.lists(CONTENTS, max_size=3),
    tail=st.sampled_from(["", ',"tools":[{"a":"]}"}]', ',"x":"messages"', ',"y":"\\u00e9"']),
    compact=st.booleans(),
)
def test_what_is_gone_on_with_is_what_is_read_whole(first: Any, second: Any, tail: str, compact: bool) -> None:
    heads = Heads(1 << 20, seed=7)
    talk: list[Any] = []
    for content in [*first, None, *second]:
        if content is not None:
            talk.append({"role": "user", "content": content})
            continue
        keep(heads, dumped(talk))
    body = dumped(talk, separators=(",", ":") if compact else None)[:-1] + tail.encode() + b"}"
    found = gone_on(heads, body)
    assert found is None or [json.loads(each.raw) for each in found] == talk


def test_the_longest_known_beginning_is_found() -> None:
    memo = Memo[str](10_000)
    messages = [read(raw) for raw in (b"one", b"two", b"three")]
    keys = joined_keys(messages)
    memo.put(beginning(keys, 1, 5), "one", 3)
    memo.put(beginning(keys, 2, 5), "two", 3)
    assert longest(memo, keys, 5) == (2, "two")
    assert longest(memo, joined_keys([messages[0], messages[2]]), 5) == (1, "one")
    assert longest(memo, keys, 6) is None and longest(memo, b"", 5) is None


def test_messages_without_keys_have_none_together() -> None:
    assert joined_keys([read(b"one"), Message("user", b"", "", b"raw")]) == b""


def test_looking_for_a_beginning_costs_no_square_of_the_messages() -> None:
    """A body of tens of thousands of tiny messages is hashed a few times at most."""
    looked: list[Hashable] = []

    class Counting(Memo[int]):
        def __contains__(self, key: Hashable) -> bool:
            looked.append(key)
            return False

    assert longest(Counting(1 << 20), bytes(KEY_BYTES * 50_000), 7) is None
    assert len(looked) == MOST_NEW
