from __future__ import annotations

import pytest
import tiktoken

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.tokens.estimate import MEDIA_TOKENS
from eluvix_extproc.tokens.tiktoken import TOKENS_FOR_ANSWER, TOKENS_PER_MESSAGE, TiktokenCounter, from_tiktoken
from tests.tokens.prompts import chat, completion, message, unpacked

# A complete encoding in small: every byte, and two merges.
RANKS = {bytes([byte]): byte for byte in range(256)} | {b"he": 256, b"llo": 258, b"lo": 257}


@pytest.fixture
def encoding() -> tiktoken.Encoding:
    return tiktoken.Encoding("small", pat_str=r"\s?\w+|\s+|.", mergeable_ranks=RANKS, special_tokens={"<|end|>": 300})


@pytest.fixture
def counter(encoding: tiktoken.Encoding, monkeypatch: pytest.MonkeyPatch) -> TiktokenCounter:
    monkeypatch.setattr(tiktoken, "get_encoding", {"small": encoding}.__getitem__)
    return from_tiktoken("small", seed=1)


def test_text_is_counted_exactly_and_special_tokens_in_it_are_text(
    counter: TiktokenCounter, encoding: tiktoken.Encoding
) -> None:
    for text in ("hello", "hello", "", "a <|end|> é 中"):
        count = counter.count(completion(text))
        assert unpacked(count.ids) == encoding.encode_ordinary(text)
        assert (count.total, count.exact) == (len(unpacked(count.ids)), True)
    both = counter.count(completion("hello", "he"))
    assert (both.total, both.exact, both.ids) == (3, True, b"")


def test_a_chat_is_an_estimate_with_the_published_overhead(counter: TiktokenCounter) -> None:
    count = counter.count(chat(message("user", "hello"), message("assistant", "he", media=1), tools=[]))
    first = len("[]") + TOKENS_PER_MESSAGE + 2
    second = first + TOKENS_PER_MESSAGE + 1 + MEDIA_TOKENS
    assert count.per_message == (first, second)
    assert (count.total, count.exact, count.ids) == (second + TOKENS_FOR_ANSWER, False, b"")
    assert counter.source == "estimate"


def test_a_part_read_body_is_scaled_by_its_own_density(counter: TiktokenCounter) -> None:
    read = completion("hello" * 1000, complete=False, read_bytes=5000, body_bytes=50_000)
    count = counter.count(read)
    assert not count.exact
    assert abs(count.total - 10 * counter.count(completion("hello" * 1000)).total) < 50


def test_a_lone_surrogate_is_an_estimate(counter: TiktokenCounter) -> None:
    assert not counter.count(completion("\ud800")).exact


def test_token_ids_need_no_encoding(counter: TiktokenCounter) -> None:
    assert counter.count(completion(token_ids=((7, 8),))).exact
    assert counter.cost_s(completion(token_ids=((7,) * 9999,))) < counter.cost_s(completion("x" * 9999))


def test_an_unknown_encoding_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="no_such_base"):
        from_tiktoken("no_such_base")


def test_an_encoding_that_cannot_be_fetched_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str) -> tiktoken.Encoding:
        raise ConnectionError("no route")

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(ConfigError, match=r"o200k_base.*no route.*TIKTOKEN_CACHE_DIR"):
        from_tiktoken("o200k_base")
