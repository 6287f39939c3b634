"""Reading answers: the same facts however the bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.answer import (
    MAX_HELD_ANSWER,
    OpaqueAnswer,
    StreamedAnswer,
    WholeAnswer,
    answer_of,
)
from eluvix_extproc.core.answers import FORMATS
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.core.sse import MAX_EVENT, MAX_LINE, SseSplitter


def chat(delta: dict[str, object]) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}'
)
DONE = b"data: [DONE]"
NOT_TOKENS = [
    chat({"role": "assistant", "content": ""}),
    chat({"content": None}),
    chat({"tool_calls": []}),
    chat({}),
    b": ping",
    b"event: ping",
    b'data: {"choices":[{"index":0,"text":""}]}',
    b"data: not json",
    b"data: [1,2]",
    b"retry: 100",
    USAGE,
    DONE,
]
TOKENS = [
    chat({"content": "机器人"}),
    chat({"content": " "}),
    chat({"reasoning_content": "hm"}),
    chat({"reasoning": "hm"}),
    chat({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
    b'data: {"choices":[{"index":0,"text":"x"}]}',
    b'data:{"choices":[{"index":0,"text":"no space"}]}',
]
STREAM = b"\n\n".join(
    [NOT_TOKENS[0], b": ping", TOKENS[0], TOKENS[2], b"event: x\r\nid: 7\r\n" + TOKENS[4], USAGE, DONE]
) + b"\n\n"


def facts(answer: StreamedAnswer) -> tuple[object, ...]:
    usage = answer.usage
    return (
        answer.token_events,
        answer.failed,
        answer.first_token_at is not None,
        usage and (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
    )


@pytest.mark.parametrize("event", NOT_TOKENS)
def test_not_a_token(event: bytes) -> None:
    answer = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    answer.feed(event + b"\n\n", False, 1.0)
    assert answer.first_token_at is None and answer.token_events == 0 and not answer.settled


@pytest.mark.parametrize("event", TOKENS)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_token(event: bytes, newline: bytes) -> None:
    answer = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    answer.feed(event + newline + newline, False, 1.0)
    assert answer.first_token_at == 1.0 and answer.token_events == 1 and answer.settled


def test_an_error_event_is_a_failure_and_no_token() -> None:
    answer = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    answer.feed(b'data: {"error": {"message": "busy", "code": 503}}\n\ndata: [DONE]\n\n', False, 1.0)
    assert answer.failed and answer.settled and answer.first_token_at is None


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_split_at_every_offset(newline: bytes) -> None:
    stream = STREAM.replace(b"\r\n", b"\n").replace(b"\n", newline)
    whole = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    whole.feed(stream, True, 1.0)
    assert facts(whole)[0] == 3
    first_token_ends = stream.index(newline * 2, stream.index("机器人".encode("unicode_escape"))) + len(newline) * 2
    for offset in range(len(stream) + 1):
        answer = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
        answer.feed(stream[:offset], False, 1.0)
        answer.feed(stream[offset:], True, 2.0)
        assert facts(answer) == facts(whole)
        assert answer.first_token_at == (1.0 if offset >= first_token_ends else 2.0)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_chunking_gives_the_same_facts(cuts: list[int]) -> None:
    whole, cut = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]()), StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    whole.feed(STREAM, True, 1.0)
    borders = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(borders):
        cut.feed(STREAM[start:end], end == len(STREAM), 1.0)
    assert facts(cut) == facts(whole)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_arbitrary_bytes_never_raise(chunks: list[bytes]) -> None:
    answer = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    for chunk in chunks:
        answer.feed(chunk, False, 1.0)
    answer.feed(b"", True, 2.0)


def test_an_endless_line_costs_bounded_memory_and_is_dropped_whole() -> None:
    splitter = SseSplitter()
    for _ in range(20):
        assert splitter.feed(b"data: " + b"x" * (MAX_LINE // 8)) == []
        assert splitter._carried <= MAX_LINE
    assert splitter.feed(b"tail\n\ndata: next\n\n") == [b"next"]


def test_a_last_event_without_its_blank_line_counts() -> None:
    answer = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    answer.feed(TOKENS[0], True, 3.0)
    assert answer.first_token_at == 3.0


def test_a_whole_answer_is_settled_at_its_end() -> None:
    answer = WholeAnswer(FORMATS[Api.OPENAI_CHAT]())
    answer.feed(b'{"choices":[],"usage":{"prompt_tok', False, 1.0)
    assert not answer.settled
    answer.feed(b'ens":7,"completion_tokens":9}}', True, 2.0)
    assert answer.settled and answer.usage is not None and answer.usage.completion_tokens == 9
    assert answer.last_token_at == 2.0 and answer.first_token_at is None


def test_an_answer_is_complete_where_its_length_or_its_last_event_says_so() -> None:
    whole = WholeAnswer(FORMATS[Api.OPENAI_CHAT](), 2)
    whole.feed(b"{", False, 1.0)
    assert not whole.complete
    whole.feed(b"}", False, 1.0)
    assert whole.complete and whole.settled
    stream = StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    stream.feed(TOKENS[0] + b"\n\n", False, 1.0)
    assert not stream.complete
    stream.feed(b"data: [DONE]\n\n", False, 1.0)
    assert stream.complete


def test_the_first_token_of_a_one_token_answer_is_its_end() -> None:
    answer = WholeAnswer(FORMATS[Api.OPENAI_CHAT]())
    answer.feed(b'{"usage":{"completion_tokens":1}}', True, 2.0)
    assert answer.first_token_at == 2.0


def test_a_large_whole_answer_is_let_go() -> None:
    answer = WholeAnswer(FORMATS[Api.OPENAI_CHAT]())
    answer.feed(b"{" + b" " * MAX_HELD_ANSWER, False, 1.0)
    assert answer.settled and answer.usage is None


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"content-type": "text/event-stream; charset=utf-8"}, StreamedAnswer),
        ({"content-type": "application/json"}, WholeAnswer),
        ({"content-type": "text/event-stream", "content-encoding": "gzip"}, OpaqueAnswer),
        ({"content-type": "application/json", "content-encoding": "identity"}, WholeAnswer),
        ({"content-type": "application/json", "content-length": "²"}, WholeAnswer),
        ({"content-type": "audio/mpeg"}, OpaqueAnswer),
        ({}, OpaqueAnswer),
    ],
)
def test_the_reader_follows_the_headers(headers: dict[str, str], kind: type) -> None:
    assert isinstance(answer_of(headers, Api.OPENAI_CHAT), kind)


HUGE = "9" * 400


@pytest.mark.parametrize("number", [HUGE, "-5", "1e999", "99999999999999999999", '"7"', "[]", "null"])
@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens", "prompt_tokens_details"])
def test_a_usage_that_makes_no_sense_is_none(field: str, number: str) -> None:
    value = f'{{"cached_tokens":{number}}}' if field == "prompt_tokens_details" else number
    usage = f'"usage":{{"{field}":{value}}}'
    whole, stream = WholeAnswer(FORMATS[Api.OPENAI_CHAT]()), StreamedAnswer(FORMATS[Api.OPENAI_CHAT]())
    whole.feed(f'{{"choices":[],{usage}}}'.encode(), True, 1.0)
    stream.feed(f'data: {{"choices":[{{"text":"x"}}],{usage}}}\n\n'.encode(), False, 1.0)
    assert stream.token_events == 1, "the rest of the event counts"
    for answer in (whole, stream):
        assert answer.usage is None or (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (None, None)


def test_an_event_that_never_ends_costs_bounded_memory_and_is_dropped_whole() -> None:
    splitter = SseSplitter()
    for _ in range(40):
        assert splitter.feed(b"data: x\n" * 10_000) == []
        assert sum(map(len, splitter._data)) <= MAX_EVENT
    assert splitter.feed(b"\ndata: next\n\n") == [b"next"]


def test_a_line_in_tiny_pieces_is_put_together_again() -> None:
    splitter = SseSplitter()
    line = b"data: " + bytes(range(32, 127)) * 60
    events = [event for byte in line for event in splitter.feed(bytes([byte]))]
    assert events == [] and splitter.feed(b"\n\n") == [line[6:]]
    assert len(splitter._carry) == 0


@given(
    st.lists(
        st.lists(
            st.sampled_from([b"data: x", b"data:y", b"data: ", b"event: e", b"event: ", b": c", b"id: 7", b"\r", b"z"]),
            max_size=3,
        ),
        max_size=5,
    ),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)
def test_a_whole_event_in_one_chunk_reads_as_it_does_in_bytes(
    blocks: list[list[bytes]], newline: bytes, one_by_one: bool
) -> None:
    """The way of the common case, one event a chunk, and that of all others have the same result."""
    chunks = [b"".join(line + newline for line in lines) + newline for lines in blocks]
    fast, slow = SseSplitter(), SseSplitter()
    events = [event for chunk in (chunks if one_by_one else [b"".join(chunks)]) for event in fast.feed(chunk)]
    assert events == [event for byte in b"".join(chunks) for event in slow.feed(bytes([byte]))]
