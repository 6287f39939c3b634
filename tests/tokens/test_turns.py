from __future__ import annotations

import json
from sys import getsizeof
from typing import Any

import pytest

from eluvix_extproc.core.prompt import Message
from eluvix_extproc.tokens.exact import ExactCounter, from_file
from eluvix_extproc.tokens.turns import Turn, Turns, weight
from tests.tokens.prompts import TINY, chat, message


@pytest.mark.parametrize(
    "value", ["text", "中文" * 99, {"a": ["b", {"c": "d" * 500}], "e": None}, [1, 2.5, "x"], ({"role": "user"},)]
)
def test_the_weight_of_a_value_is_all_that_it_holds(value: Any) -> None:
    texts = [part for part in json.dumps(value, ensure_ascii=False).split('"')[1::2] if part]
    assert weight(value) >= getsizeof(value)
    assert weight(value) >= sum(map(len, texts))


def test_a_turn_weighs_no_less_than_it_holds() -> None:
    turn = kept_turn([message("user", "wörter " * 900), message("assistant", "短い" * 700)])
    held = [*turn.messages, *turn.pieces, turn.rest, turn.ids, turn.cuts, turn.cut_tokens, turn.counts]
    distinct = {id(each): getsizeof(each) for each in held}
    contents = {id(each["content"]): getsizeof(each["content"]) for each in turn.messages}
    assert turn.size() >= sum((distinct | contents).values())


@pytest.mark.parametrize("budget", [20_000, 200_000])
def test_what_is_remembered_never_exceeds_its_budget(budget: int) -> None:
    counter = from_file(TINY, memo_bytes=2 * budget, seed=3)
    for number in range(40):
        history = [message("user", f"{number} " * 400), message("assistant", f"{number}{number} " * 200)]
        counter.count(chat(*history))
        counter.count(chat(*history, message("user", "and?")))
        assert turns_of(counter).used_bytes <= budget
    assert turns_of(counter).used_bytes > budget // 2


def test_a_conversation_is_kept_once_however_long_it_grows() -> None:
    counter = from_file(TINY, seed=3)
    history: list[Message] = []
    for number in range(12):
        history += [message("user", f"question {number}"), message("assistant", f"answer {number}")]
        counter.count(chat(*history))
    assert len(turns_of(counter)._memo) == 1


def turns_of(counter: ExactCounter) -> Turns:
    turns = counter._chats._turns
    assert turns is not None
    return turns


def kept_turn(history: list[Message]) -> Turn:
    counter = from_file(TINY, seed=3)
    prompt = chat(*history)
    counter.count(prompt)
    turns = turns_of(counter)
    turn = turns.longest(turns.keys(prompt.messages), turns.kind("string"))
    assert turn is not None
    return turn
