from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.prompt import Api, Message, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import parse

USER = {"role": "user", "content": "hi"}


def chat(body: Any, **kwargs: Any) -> Prompt:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(Api.OPENAI_CHAT, raw, body_bytes=len(raw), **kwargs)


def message(value: Any) -> Message:
    return chat({"model": "m", "messages": [value]}).messages[0]


def test_the_fields_that_routing_needs() -> None:
    prompt = chat(
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 5,
            "max_completion_tokens": 7,
            "n": 2,
            "cache_salt": "s",
            "tools": [{"b": 1, "a": None}],
            "chat_template_kwargs": {"enable_thinking": False},
            "add_generation_prompt": False,
            "continue_final_message": True,
            "messages": [USER],
        }
    )
    assert (prompt.model, prompt.stream, prompt.include_usage, prompt.max_tokens) == ("m", True, True, 7)
    assert (prompt.samples, prompt.salt, prompt.tools) == (2, "s", b'[{"a":null,"b":1}]')
    assert prompt.tools_raw == b'[{"b": 1, "a": null}]'
    assert prompt.template_kwargs == b'{"enable_thinking": false}'
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (False, True)
    assert prompt.complete and prompt.read_bytes == prompt.body_bytes > 0 and not prompt.reserved


def test_defaults() -> None:
    prompt = chat({"model": "m", "messages": [USER], "tools": None, "max_tokens": None})
    assert (prompt.stream, prompt.include_usage, prompt.max_tokens, prompt.samples) == (False, False, None, 1)
    assert (prompt.salt, prompt.tools, prompt.tools_raw, prompt.template_kwargs) == ("", b"", b"", b"")
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (True, False)


@pytest.mark.parametrize(
    "odd",
    [
        {"max_tokens": "many"},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"n": [], "stream_options": 3, "cache_salt": 4},
        {"temperature": {"a": 1}, "unknown": [1]},
        {"stream": {"x": 1}, "add_generation_prompt": []},
    ],
)
def test_odd_values_of_other_fields_are_the_engines_business(odd: dict[str, Any]) -> None:
    prompt = chat({"model": "m", "messages": [USER], **odd})
    assert (prompt.max_tokens, prompt.samples, prompt.salt, prompt.include_usage) == (None, 1, "", False)
    assert prompt.stream is False


@pytest.mark.parametrize("odd", [b'"\xff"', b'{"a":["\xff"]}'])
@pytest.mark.parametrize("name", ["stream", "stream_options", "n", "cache_salt", "max_tokens", "add_generation_prompt"])
def test_a_member_that_cannot_be_decoded_counts_as_absent(name: str, odd: bytes) -> None:
    """The others are read as ever, though the body then takes a second, more careful decoding."""
    rest = b'"model":"m","max_completion_tokens":7,"messages":[{"role":"user","content":"hi"}]}'
    body = b'{"%b":%b,%b' % (name.encode(), odd, rest)
    without = parse(Api.OPENAI_CHAT, b"{" + rest, body_bytes=9)
    assert msgspec.structs.replace(parse(Api.OPENAI_CHAT, body, body_bytes=9), read_bytes=without.read_bytes) == without


@pytest.mark.parametrize("value", [True, 1, "true", "ON", "1"])
def test_stream_in_the_spellings_that_engines_accept(value: Any) -> None:
    assert chat({"model": "m", "messages": [USER], "stream": value}).stream


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"nonsense", None),
        (b'{"model":"m"}{', None),
        (b"[1]", None),
        (b"null", None),
        (b'"x"', None),
        (b'{"model":"m","x":NaN,"messages":[]}', None),
        (b"[" * 100_000, None),
        (b'{"model":"m","messages":' + b"[" * 100_000, None),
        (b'{"model":"m","x":' + b'{"a":' * 100_000, None),
        (b'{"model":"m"}', "messages"),
        (b'{"model":"m","messages":null}', "messages"),
        (b'{"model":"m","messages":[]}', "messages"),
        (b'{"model":"m","messages":"hi"}', "messages"),
        (b'{"model":"m","messages":{}}', "messages"),
        (b'{"model":"m","messages":["hi"]}', "messages[0]"),
        (b'{"model":"m","messages":[{"role":"user"},{"content":"x"}]}', "messages[1].role"),
        (b'{"model":"m","messages":[{"role":1}]}', "messages[0].role"),
        (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', "messages[0]"),
        (b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}', "messages[0]"),
        (b'{"model":"m","messages":[{"role":"user","content":"\\ud800 "}]}', None),
        (b'{"model":7,"messages":[{"role":"user","content":"x"}]}', "model"),
        (b'{"model":"\xff","messages":[{"role":"user","content":"x"}]}', "model"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_malformed_bodies(body: bytes, param: str | None) -> None:
    with pytest.raises(MalformedBody) as caught:
        chat(body)
    assert caught.value.message
    if param is not None:
        assert caught.value.param == param


@pytest.mark.parametrize("model", [b"", b'"model":null,'])
def test_a_model_may_be_left_out(model: bytes) -> None:
    assert chat(b'{%b"messages":[{"role":"user","content":"x"}]}' % model).model == ""


def test_deep_nesting_that_the_decoder_skips_or_reads() -> None:
    deep = b'{"a":' * 400 + b"1" + b"}" * 400
    assert chat(b'{"model":"m","messages":[{"role":"user","content":"x","extra":%b}]}' % deep).messages
    deeper = b"[" * 5_000 + b"]" * 5_000
    for body in (
        b'{"model":"m","messages":[{"role":"user","content":%b}]}' % deeper,
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":%b}' % deeper,
    ):
        with pytest.raises(MalformedBody):
            chat(body)


def test_a_byte_order_mark_is_skipped_as_engines_do() -> None:
    assert chat(b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"x"}]}').model == "m"


def test_raw_is_what_was_sent() -> None:
    sent = b'{ "content" : "h\\u0069" ,"role":"user" }'
    assert chat(b'{"messages": [ %b ,{"role":"user"}],"model":"m"}' % sent).messages[0].raw == sent


def test_contents_of_every_shape() -> None:
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "http://x/v"}},
        {"type": "refusal", "refusal": "no"},
        {"text": "untyped"},
        {"image_url": "http://x/i"},
        "bare",
    ]
    rich = message({"role": "user", "content": parts})
    assert (rich.text, rich.media) == ("see\nno\nuntyped\nbare", 4)
    for null in (message({"role": "assistant", "content": None}), message({"role": "assistant"})):
        assert (null.text, null.media) == ("", 0)
    assert message({"role": "user", "content": 7}).text == ""


def test_text_holds_what_the_engine_tokenises() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}}
    parsed = {"type": "function", "function": {"name": "see", "arguments": {"b": 1, "a": 2}}}
    value = {"role": "assistant", "content": "x", "reasoning_content": "hm", "tool_calls": [call, parsed, 3]}
    assert message(value).text == 'x\nhm\nlook\n{"q": 1}\nsee\n{"a":2,"b":1}'
    assert message({"role": "tool", "tool_call_id": "c1", "name": "look", "content": "y"}).text == "y\nlook"


def test_media_are_part_of_the_canonical_bytes_by_content() -> None:
    def image(data: str) -> Any:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data}}]}

    assert message(image("data:a")).canonical != message(image("data:b")).canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (USER, {"content": "hi", "role": "user"}),
        (USER, {"role": "user", "content": "hi", "tool_calls": None, "name": None}),
        ({"role": "tool", "content": "a", "tool_call_id": "1"}, {"tool_call_id": "1", "role": "tool", "content": "a"}),
        ({"role": "assistant"}, {"role": "assistant", "content": None}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"content": [{"text": "a", "type": "text"}], "role": "user"},
        ),
    ],
)
def test_equal_messages_have_equal_canonical_bytes(one: Any, other: Any) -> None:
    assert message(one).canonical == message(other).canonical


def test_escapes_and_whitespace_do_not_matter() -> None:
    spellings = (
        b'{"role":"user","content":"\xc3\xa9/\xf0\x9f\x98\x80"}',
        b'{ "role" : "us\\u0065r" ,\n"c\\u006fntent":"\\u00e9\\/\\ud83d\\ude00"}',
    )
    one, other = (chat(b'{"model":"m","messages":[%b]}' % s).messages[0].canonical for s in spellings)
    assert one == other


texts = st.text(max_size=6)
contents = (
    st.none()
    | texts
    | st.integers(0, 3)
    | st.lists(texts | st.dictionaries(st.sampled_from(["type", "text", "image_url"]), texts, max_size=2), max_size=3)
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "us"]) | texts, "content": contents},
    optional={"name": st.none() | texts, "tool_calls": st.none() | st.lists(st.integers(0, 2), max_size=2)},
)


def plain(value: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in value.items() if v is not None}


@given(messages, messages, st.booleans(), st.randoms(use_true_random=False))
def test_canonical_bytes_are_equal_exactly_for_equal_messages(one: Any, other: Any, ensure: bool, random: Any) -> None:
    assert (message(one).canonical == message(other).canonical) == (plain(one) == plain(other))
    items = list(one.items())
    random.shuffle(items)
    again = json.dumps({"messages": [dict(items)], "model": "m"}, ensure_ascii=ensure, indent=1).encode()
    assert chat(again).messages[0].canonical == message(one).canonical
