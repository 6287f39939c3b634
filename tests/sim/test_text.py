from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.sim import text

USER = {"role": "user", "content": "What is the sea?"}


@given(st.text(max_size=200))
def test_plain_text_is_a_token_per_four_bytes_rounded_up(words: str) -> None:
    assert text.count(text.text_tokens(words)) == -(-len(words.encode()) // 4)


def test_a_message_costs_its_bytes_and_four_tokens_more() -> None:
    assert text.count(text.chat_tokens([])) == 3
    assert text.count(text.chat_tokens([{"role": "user", "content": "12345"}])) == 3 + 4 + 2


@given(st.lists(st.integers(0, 2**32), max_size=50))
def test_token_ids_count_themselves(ids: list[int]) -> None:
    assert text.count(text.id_tokens(ids)) == len(ids)


def test_an_answer_follows_from_the_prompt_alone() -> None:
    prompt = text.chat_tokens([USER])
    long = text.answer(prompt, 40, 0, ends=False)
    assert text.answer(prompt, 15, 0, ends=False) == long[:15]
    assert text.answer(prompt, 40, 1, ends=False) != long
    assert text.answer(text.chat_tokens([{**USER, "content": "What is the sky?"}]), 40, 0, ends=False) != long
    assert all(len(word.encode()) == text.TOKEN_BYTES and word.isascii() for word in long)


def test_a_follow_up_turn_continues_the_tokens_of_the_first() -> None:
    prompt = text.chat_tokens([USER])
    words = text.answer(prompt, 20, 0, ends=True)
    turn = [USER, {"role": "assistant", "content": "".join(words)}, {"role": "user", "content": "And the sky?"}]
    first = text.block_hashes(prompt, words, 4)
    assert text.block_hashes(text.chat_tokens(turn), [], 4)[: len(first)] == first


def test_block_hashes_tell_prefixes_and_salts_apart() -> None:
    one, two = (text.text_tokens(start + "shared end " * 10) for start in ("AAAA", "BBBB"))
    assert not set(text.block_hashes(one, [], 4)) & set(text.block_hashes(two, [], 4))
    assert not set(text.block_hashes(one, [], 4)) & set(text.block_hashes(one, [], 4, salt="tenant"))


def test_tools_and_parts_are_part_of_the_prompt() -> None:
    plain = text.chat_tokens([USER])
    assert text.count(text.chat_tokens([USER], tools=[{"type": "function"}])) > text.count(plain)
    assert text.chat_tokens([{"role": "user", "content": [{"type": "text", "text": USER["content"]}]}]) == plain
    images = [
        text.chat_tokens([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
        for url in ("data:a", "data:b")
    ]
    assert images[0] != images[1]
    assert text.count(images[0]) == text.count(images[1]) == 3 + 4 + 64
