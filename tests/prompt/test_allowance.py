"""A body made to be costly is decoded only in part, and is a prompt nevertheless."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eluvix_extproc.core.prefix import chain
from eluvix_extproc.core.prompt import Api, Prompt, TokenCount
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import parse
from eluvix_extproc.prompt.allowance import MOST_VALUES, allowance, covered

JUNK = b"[" + b"[]," * (2 * MOST_VALUES) + b"[]]"
TEXT = json.dumps('if (a[0], b{1}) "quoted" \\ ' * 30_000).encode()


def parsed(api: Api, body: bytes, **kwargs: Any) -> Prompt:
    return parse(api, body, body_bytes=len(body), **kwargs)


def root(prompt: Prompt) -> bytes:
    return chain(prompt, TokenCount(9, False), model="m", adapter="").root


@pytest.mark.parametrize(
    ("api", "member"), [(Api.OPENAI_CHAT, b"messages"), (Api.ANTHROPIC_MESSAGES, b"messages"),
                        (Api.OPENAI_RESPONSES, b"input"), (Api.OPENAI_EMBEDDINGS, b"messages")],
)  # fmt: skip
def test_a_message_of_nothing_but_brackets_is_taken_as_its_bytes(api: Api, member: bytes) -> None:
    def body(junk: bytes) -> bytes:
        return b'{"model":"m","%b":[{"role":"system","content":"s"},{"role":"user","content":%b}]}' % (member, junk)

    prompt = parsed(api, body(JUNK))
    first, second = prompt.messages
    assert (first.text, second.role, second.raw) == ("s", "user", b"")
    assert second.canonical.endswith(b"\0r") and JUNK in second.canonical
    assert prompt.elsewhere
    assert root(prompt) == root(parsed(api, body(JUNK))) != root(parsed(api, body(JUNK.replace(b"[]", b"{}", 1))))


@pytest.mark.parametrize("name", ["tools", "chat_template_kwargs", "documents", "stream", "stream_options", "x"])
def test_so_is_any_other_member(name: str) -> None:
    junk = b'{"a":%b}' % JUNK if name == "chat_template_kwargs" else JUNK
    body = b'{"model":"m","%b":%b,"messages":[{"role":"user","content":"hi"}]}' % (name.encode(), junk)
    prompt = parsed(Api.OPENAI_CHAT, body)
    assert (prompt.model, prompt.messages[0].role, prompt.tools_raw, prompt.template_kwargs) == ("m", "user", b"", b"")
    assert prompt.tools == (JUNK if name == "tools" else b"")


@pytest.mark.parametrize("content", [TEXT, b'[{"type":"text","text":%b}]' % TEXT], ids=["text", "part"])
def test_brackets_in_a_text_are_text(content: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":%b},{"role":"user"}]}' % content
    prompt = parsed(Api.OPENAI_CHAT, body)
    assert prompt.messages[0].text == json.loads(TEXT)
    assert not prompt.elsewhere


def test_what_is_not_decoded_still_needs_a_role() -> None:
    for message, where in ((b'{"content":%b}' % JUNK, "messages[0].role"), (JUNK, "messages[0]")):
        with pytest.raises(MalformedBody) as caught:
            parsed(Api.OPENAI_CHAT, b'{"model":"m","messages":[%b]}' % message)
        assert caught.value.param == where


def test_the_allowance_is_for_the_whole_body() -> None:
    body = b"[]," * MOST_VALUES
    left = allowance(body)
    shares = [covered(left, body[: len(body) // 4]) for _ in range(4)]
    assert shares[0] and not shares[-1]


def test_nothing_is_bounded_in_bodies_that_are_small_or_mean_something() -> None:
    assert allowance(b"[]," * 40_000) is None
    assert allowance(TEXT[:200_000]) is None
