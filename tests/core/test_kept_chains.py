"""A chain that goes on from what was kept of the turn before is the chain that is made anew."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from eluvix_extproc.core.hints import VolatileLines
from eluvix_extproc.core.prefix import BLOCK_TOKENS, chain
from eluvix_extproc.core.prompt import Api, Message, Prompt, TokenCount
from eluvix_extproc.core.recall import Heads

HEADS = Heads(0, seed=11)
ROLES, SIZES = st.sampled_from(["system", "user", "assistant"]), st.sampled_from([1, 300, 5_000, 20_000])
MESSAGES = st.lists(st.tuples(ROLES, SIZES, st.integers(0, 3)), min_size=1, max_size=6)


def message(role: str, size: int, letter: int) -> Message:
    text = f"Date: {letter}\n" + "abcd"[letter] * size
    raw = msgspec.json.encode({"role": role, "content": text})
    canonical = text.encode() + role.encode() + len(text).to_bytes(8, "little") + b"s"
    return Message(role, canonical, text, raw, 0, HEADS.key(raw))


def prompt(messages: list[Message], **fields: Any) -> Prompt:
    size = 5_000 + sum(len(each.raw) for each in messages)  # worth keeping, whatever it holds
    return Prompt(Api.OPENAI_CHAT, "m", False, size, size, messages=tuple(messages), **fields)


def without_keys(asked: Prompt) -> Prompt:
    bare = tuple(msgspec.structs.replace(each, key=b"") for each in asked.messages)
    return msgspec.structs.replace(asked, messages=bare)


def counted(messages: list[Message], per_block: int, tail: int, *, ids: bool, ends: bool) -> TokenCount:
    """`tail` are the ids of an opened answer, which the next turn may not have."""
    tokens = [1 + len(each.canonical) * per_block // 1_000 for each in messages]
    stream = [100 + at for at, count in enumerate(tokens) for _ in range(count)] + [9] * tail
    boundaries = tuple(sum(tokens[: at + 1]) for at in range(len(tokens))) if ends else ()
    return TokenCount(len(stream), ids, boundaries, struct.pack(f"<{len(stream)}I", *stream) if ids else b"")


@settings(max_examples=150, deadline=None)
@given(
    turns=MESSAGES,
    branch=MESSAGES,
    cut=st.integers(0, 5),
    density=st.sampled_from([5, 60, 300]),
    tails=st.lists(st.sampled_from([0, 3, BLOCK_TOKENS, 4 * BLOCK_TOKENS]), min_size=13, max_size=13),
    ids=st.booleans(),
    ends=st.booleans(),
    volatile=st.booleans(),
    tools=st.sampled_from([b"", b"[]"]),
    salt=st.sampled_from(["", "s"]),
)
def test_with_and_without_it_a_chain_is_the_same(
    turns: Any, branch: Any, cut: int, density: int, tails: list[int], ids: bool, ends: bool, volatile: bool,
    tools: bytes, salt: str,
) -> None:  # fmt: skip
    lines = VolatileLines(["^Date: "]) if volatile else None
    first = [message(*turn) for turn in turns]
    conversations = [first[:size] for size in range(1, len(first) + 1)]
    conversations += [first[:cut] + [message(*turn) for turn in branch], first]
    for messages, tail in zip(conversations, tails, strict=False):
        asked = prompt(messages, tools=tools, salt=salt)
        count = counted(messages, density, tail, ids=ids, ends=ends)
        for model in ("m", "n"):
            made = chain(asked, count, model=model, adapter="", volatile=lines)
            assert made == chain(without_keys(asked), count, model=model, adapter="", volatile=lines)


def test_other_ids_for_the_same_messages_are_hashed_anew() -> None:
    messages = [message("user", 20_000, 0)]
    for start in (1, 2, 1):
        ids = struct.pack("<2000I", *range(start, 2_000 + start))
        count = TokenCount(2_000, True, (2_000,), ids)
        longer = TokenCount(2_000, True, (2_000, 2_000), ids)
        for asked, of in ((prompt(messages), count), (prompt([*messages, message("user", 1, 1)]), longer)):
            assert chain(asked, of, model="m", adapter="") == chain(without_keys(asked), of, model="m", adapter="")


def test_a_head_that_was_read_in_part_is_not_kept() -> None:
    messages = [message("user", 20_000, 2), message("assistant", 20_000, 3)]
    for complete in (False, True, False):
        asked = prompt(messages, complete=complete)
        count = counted(messages, 60, 0, ids=False, ends=True)
        assert chain(asked, count, model="m", adapter="") == chain(without_keys(asked), count, model="m", adapter="")
