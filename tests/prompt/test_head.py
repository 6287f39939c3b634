from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.errors import FailOpen, MalformedBody
from eluvix_extproc.prompt import parse
from eluvix_extproc.prompt.head import readable

CONVERSATION = {
    "model": "m\u00e9",
    "stream": True,
    "seed": -1.5e3,
    "messages": [
        {"role": "system", "content": "be \"brief\" \\ \u00e9\U0001f600"},
        {"role": "user", "content": [{"type": "text", "text": "a{b[c\n"}, {"image_url": {"url": "d"}}]},
        {"role": "user", "content": "\U0001f600\\\\\\" * 3, "name": None},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "cache_salt": "salt",
}


def head(api: Api, body: bytes, size: int) -> Prompt:
    return parse(api, body[:size], body_bytes=len(body), complete=False)


def is_beginning(part: Any, whole: Any) -> bool:
    """Whether `part` is `whole`, cut off somewhere; what was cut off whole may be null."""
    if part is None or type(part) is not type(whole):
        return part is None
    if isinstance(whole, str):
        return whole.startswith(part)
    if isinstance(whole, list):
        last = len(part) - 1
        return not part or (part[:last] == whole[:last] and is_beginning(part[last], whole[last]))
    if isinstance(whole, dict):
        names = list(part)
        return names == list(whole)[: len(names)] and all(
            is_beginning(part[name], whole[name]) if name == names[-1] else part[name] == whole[name] for name in names
        )
    return part == whole


@pytest.mark.parametrize("ensure", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_every_cut_of_a_conversation(ensure: bool, indent: int | None) -> None:
    body = json.dumps(CONVERSATION, ensure_ascii=ensure, indent=indent).encode()
    whole = parse(Api.OPENAI_CHAT, body, body_bytes=len(body))
    read = 0
    for size in range(1, len(body) + 1):
        members = json.loads(readable(body[:size], "messages"))
        assert is_beginning(members, CONVERSATION), size
        prompt = head(Api.OPENAI_CHAT, body, size)
        assert (prompt.complete, prompt.body_bytes, prompt.read_bytes) == (False, len(body), size)
        assert prompt.model in ("", whole.model)
        assert prompt.tools in (b"", whole.tools)
        assert prompt.salt in ("", whole.salt)
        assert prompt.messages[:-1] == whole.messages[: max(len(prompt.messages) - 1, 0)]
        assert len(prompt.messages) >= read
        read = len(prompt.messages)
    assert prompt.messages == whole.messages


@pytest.mark.parametrize("prompt", ["h\u00e9llo \"x\"", ["one", "two"], [1, 23, 456], [[1, 2], [33]]], ids=str)
def test_every_cut_of_a_completion(prompt: Any) -> None:
    body = json.dumps({"model": "m", "prompt": prompt, "n": 1}).encode()
    whole = parse(Api.OPENAI_COMPLETIONS, body, body_bytes=len(body))
    for size in range(1, len(body) + 1):
        cut = head(Api.OPENAI_COMPLETIONS, body, size)
        assert is_beginning([list(ids) for ids in cut.token_ids], [list(ids) for ids in whole.token_ids])
        assert is_beginning(list(cut.texts), list(whole.texts))
    assert (cut.texts, cut.token_ids) == (whole.texts, whole.token_ids)


def test_a_cut_number_is_not_another_number() -> None:
    assert readable(b'{"prompt":[12,34', "prompt") == b'{"prompt":[12]}'


def test_half_a_model_name_is_none() -> None:
    prompt = head(Api.OPENAI_CHAT, b'{"messages":[{"role":"user","content":"x"}],"model":"gpt-4o"}', 57)
    assert (prompt.model, len(prompt.messages)) == ("", 1)


def test_a_head_without_the_prompt_is_no_error() -> None:
    for body in (b"{", b'{"mod', b'{"model":"m"', b'{"model":"m","messages"', b'{"model":"m","messages":[', b" {"):
        assert head(Api.OPENAI_CHAT, body, len(body)).messages == ()
    for body in (b"{", b'{"prompt', b'{"prompt":', b'{"prompt":[', b'{"prompt":[1'):
        assert head(Api.OPENAI_COMPLETIONS, body, len(body)).token_ids == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"hello",
        b"[1,2",
        b'"text',
        b'{"a":]',
        b'{"a" "b"',
        b"{]",
        b"}}",
        b'{"messages":{"a":1',
        b'{"messages":[1,2',
        b"\xff\xfe{\0",
        b'{"messages":' + b"[" * 500_000,
        b'{"messages":[{"role":"user","content":"\xff","x":"',
    ],
    ids=lambda value: repr(value)[:50],
)
def test_what_is_not_the_head_of_a_request(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        head(Api.OPENAI_CHAT, body, len(body))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values), st.booleans(), st.data())
def test_any_object_cut_anywhere_is_readable(value: Any, ensure: bool, data: st.DataObject) -> None:
    body = json.dumps(value, ensure_ascii=ensure).encode("utf-8")
    size = data.draw(st.integers(1, len(body)))
    members = json.loads(readable(body[:size], data.draw(st.sampled_from(["messages", *value]))))
    assert is_beginning(members, value)


tokens = st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"a", b"1"])


@given(st.binary(max_size=40) | st.lists(tokens).map(b"".join))
def test_no_head_breaks_it(body: bytes) -> None:
    for api in Api:
        for complete in (True, False):
            try:
                parse(api, body, body_bytes=99, complete=complete)
            except (MalformedBody, FailOpen):
                pass
