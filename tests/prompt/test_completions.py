from __future__ import annotations

import json
from typing import Any

import pytest

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import parse


def completion(body: Any) -> Prompt:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(Api.OPENAI_COMPLETIONS, raw, body_bytes=len(raw))


@pytest.mark.parametrize(
    ("prompt", "texts", "token_ids"),
    [
        ("once", ("once",), ()),
        ("", ("",), ()),
        (["once", "twice"], ("once", "twice"), ()),
        ([0, 19923, 1031], (), ((0, 19923, 1031),)),
        ([[1, 2], [3]], (), ((1, 2), (3,))),
        ([[]], (), ((),)),
        ([2**32 - 1], (), ((2**32 - 1,),)),
    ],
)
def test_the_four_kinds_of_prompt(prompt: Any, texts: Any, token_ids: Any) -> None:
    parsed = completion({"model": "m", "prompt": prompt, "stream": True, "max_tokens": 3, "n": 2, "cache_salt": "s"})
    assert (parsed.texts, parsed.token_ids, parsed.messages) == (texts, token_ids, ())
    assert (parsed.model, parsed.stream, parsed.max_tokens, parsed.samples, parsed.salt) == ("m", True, 3, 2, "s")


def test_whitespace_before_the_first_element() -> None:
    assert completion(b'{"model":"m","prompt":[' + b" " * 200 + b'"x"]}').texts == ("x",)


@pytest.mark.parametrize(
    "prompt", [None, [], 7, True, {}, {"a": 1}, [1, "x"], ["x", 1], [[1], 2], [-1], [2**32], [1.5], [True], [[["x"]]]]
)
def test_prompts_that_no_engine_could_read(prompt: Any) -> None:
    with pytest.raises(MalformedBody) as caught:
        completion({"model": "m", "prompt": prompt})
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "body",
    [b'{"model":"m"}', b'{"model":"m","prompt":"\xff"}', b'{"model":"m","prompt":' + b"[" * 9_999],
    ids=lambda value: repr(value)[:50],
)
def test_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        completion(body)


def test_embeddings_are_a_prompt_of_which_nothing_is_known() -> None:
    parsed = completion({"model": "m", "prompt_embeds": "AAAA"})
    assert (parsed.texts, parsed.token_ids) == ((), ())
