from __future__ import annotations

import pytest

from eluvix_extproc.tokens.estimate import GENERATION_PROMPT_TOKENS, MEDIA_TOKENS, MESSAGE_OVERHEAD_TOKENS, Estimate
from tests.tokens.prompts import chat, completion, message, unpacked


def test_a_text_is_its_utf8_bytes_over_the_ratio_rounded_up() -> None:
    count = Estimate(4.0).count(completion("abcde"))
    assert (count.total, count.exact, count.ids) == (2, False, b"")
    assert Estimate(1.0).count(completion("é中")).total == 5


def test_several_texts_add_up() -> None:
    assert Estimate(4.0).count(completion("abcde", "ab")).total == 3


def test_a_chat_counts_tools_turns_overheads_and_media() -> None:
    prompt = chat(message("user", "x" * 40), message("user", "y" * 41, media=2), tools=[1])
    count = Estimate(4.0).count(prompt)
    tools = len(prompt.tools)
    first = MESSAGE_OVERHEAD_TOKENS + -(-(40 + tools) // 4)
    second = 2 * MESSAGE_OVERHEAD_TOKENS + -(-(81 + tools) // 4) + 2 * MEDIA_TOKENS
    assert count.per_message == (first, second)
    assert count.total == second + GENERATION_PROMPT_TOKENS
    assert not count.exact


def test_boundaries_of_a_follow_up_begin_with_those_of_the_turn_before() -> None:
    turns = [message("user", "one"), message("assistant", "two" * 9), message("user", "three" * 7)]
    before, after = Estimate(3.7).count(chat(*turns[:2])), Estimate(3.7).count(chat(*turns))
    assert after.per_message[:2] == before.per_message


def test_the_unread_part_of_a_body_is_as_dense_as_the_read_one() -> None:
    whole = Estimate(4.0).count(completion("x" * 4000)).total
    part = completion("x" * 4000, read_bytes=4000, body_bytes=40_000, complete=False)
    assert Estimate(4.0).count(part).total == 10 * whole


def test_token_ids_are_exact_even_here() -> None:
    count = Estimate(4.0).count(completion(token_ids=((1, 2, 70_000),)))
    assert (count.total, count.exact, unpacked(count.ids)) == (3, True, [1, 2, 70_000])


def test_a_batch_of_token_ids_has_a_total_but_no_chain() -> None:
    count = Estimate(4.0).count(completion(token_ids=((1, 2), (3,))))
    assert (count.total, count.exact, count.ids) == (3, True, b"")


def test_token_ids_of_a_part_read_body_are_an_estimate() -> None:
    count = Estimate(4.0).count(completion(token_ids=((1, 2),), read_bytes=10, body_bytes=50, complete=False))
    assert (count.total, count.exact, count.ids) == (10, False, b"")


@pytest.mark.parametrize("ids", [(-1,), (1 << 32,)])
def test_numbers_that_are_no_token_ids_are_counted_but_not_handed_on(ids: tuple[int, ...]) -> None:
    count = Estimate(4.0).count(completion(token_ids=(ids,)))
    assert (count.total, count.ids) == (1, b"")


def test_lone_surrogates_and_emptiness_are_counted_too() -> None:
    assert Estimate(1.0).count(completion("\ud800")).total == 3
    assert Estimate(4.0).count(chat()).per_message == ()
    assert Estimate(4.0).count(completion("")).total == 0


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_that_is_not_positive_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Estimate(ratio)


def test_a_bigger_prompt_is_predicted_to_cost_more() -> None:
    estimate = Estimate(4.0)
    assert 0 < estimate.cost_s(completion("x")) < estimate.cost_s(completion("x" * 100_000)) < 0.001
