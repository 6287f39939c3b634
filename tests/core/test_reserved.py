from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core import reserved
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import parse

TRANSFER = ("kv_transfer_params", "ec_transfer_params")
PATHS = [(name,) for name in sorted(reserved.NAMES)] + [
    (*parent, name)
    for parent in (("vllm_xargs",), ("extra_args",), ("sampling_params", "extra_args"))
    for name in TRANSFER
]
PROMPTS = {
    Api.OPENAI_COMPLETIONS: '"prompt":"a"',
    Api.OPENAI_RESPONSES: '"input":"a"',
    Api.OPENAI_EMBEDDINGS: '"input":"a"',
    Api.RERANK: '"query":"a","documents":["b"]',
    Api.ANTHROPIC_MESSAGES: '"messages":[{"role":"user","content":"a"}]',
    Api.ANTHROPIC_COUNT_TOKENS: '"messages":[{"role":"user","content":"a"}]',
    Api.VLLM_GENERATE: '"token_ids":[1]',
    Api.SGLANG_GENERATE: '"text":"a"',
}


def escaped(name: str, positions: set[int]) -> str:
    return "".join(f"\\u{ord(c):04x}" if i in positions else c for i, c in enumerate(name))


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_every_reserved_member_goes(path: tuple[str, ...]) -> None:
    body = json.dumps({"model": "m", **nested(path, {"do_remote_prefill": True}), "n": 1}).encode()
    stripped = reserved.strip(body)
    assert stripped is not None
    assert json.loads(stripped) == {"model": "m", **(nested(path[:-1], {}) if path[1:] else {}), "n": 1}
    assert reserved.strip(stripped) is None


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_parse_tells_that_there_may_be_something_to_strip(path: tuple[str, ...]) -> None:
    for spelling in (path[0], escaped(path[0], {0, 3})):
        member = f'"{spelling}":{json.dumps(nested(path[1:], 1))}'
        chat = f'{{"messages":[{{"role":"user","content":"a"}}],{member},"model":"m"}}'.encode()
        assert parse(Api.OPENAI_CHAT, chat, body_bytes=len(chat)).reserved
        for api, prompt in PROMPTS.items():
            body = f'{{{member},{prompt},"model":"m"}}'.encode()
            assert parse(api, body, body_bytes=len(body)).reserved, api


def test_an_ordinary_body_is_left_alone() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"what is kv_transfer_params?"}],"seed":1.0}'
    assert reserved.strip(body) is None
    assert not parse(Api.OPENAI_CHAT, body, body_bytes=len(body)).reserved


def test_every_other_byte_stays() -> None:
    body = (
        b'\xef\xbb\xbf \n{ "z" :\t1.50 ,\n  "kv_transfer_params" : {"a": [1, "}"]} , "a":"\\u00e9\\/" ,"n":1E5,'
        b' "bootstrap_room":7 }\r\n'
    )
    assert reserved.strip(body) == b'\xef\xbb\xbf \n{ "z" :\t1.50 , "a":"\\u00e9\\/" ,"n":1E5 }\r\n'


def test_only_reserved_members() -> None:
    assert reserved.strip(b'{ "bootstrap_host":"h" , "bootstrap_room" : 1}') == b"{ }"


def test_repeated_names_all_go() -> None:
    body = b'{"kv_transfer_params":1,"a":1,"kv_transfer_params":12,"kv\\u005ftransfer_params":1,"b":2}'
    assert reserved.strip(body) == b'{"a":1,"b":2}'


def test_repeated_parents_are_all_looked_into() -> None:
    body = b'{"vllm_xargs":{"kv_transfer_params":1},"x":"y","vllm_xargs":{"k":1}}'
    assert reserved.strip(body) == b'{"vllm_xargs":{},"x":"y","vllm_xargs":{"k":1}}'


def test_other_repeated_names_stay() -> None:
    body = b'{"a":1,"xx":12,"a":12,"xx":1,"bootstrap_port":1,"x":[1],"x":{"a":2}}'
    assert reserved.strip(body) == b'{"a":1,"xx":12,"a":12,"xx":1,"x":[1],"x":{"a":2}}'


def test_parents_of_another_type_stay() -> None:
    assert reserved.strip(b'{"vllm_xargs":"kv_transfer_params","extra_args":null,"sampling_params":[1]}') is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b"null",
        b'{"kv_transfer_params":1',
        b'{"kv_transfer_params":' + b"[" * 100_000,
        '{"kv_transfer_params":1}'.encode("utf-16"),
        '{"kv_transfer_params":1}'.encode("utf-32-le"),
        b'{"bootstrap_room":1' + b',"a":1' * 5_000 + b"}",
        b'{"bootstrap_room":1' + b',"a":1,"a":2' * 50 + b"}",
    ],
    ids=lambda value: repr(value)[:50],
)
def test_what_cannot_be_stripped_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        reserved.strip(body)


scalars = st.none() | st.booleans() | st.integers(-9, 99) | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3) | st.sampled_from(TRANSFER), v, max_size=3),
    max_leaves=6,
)
spaces = st.text(" \t\r\n", max_size=2)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]]]:
    """An object's text, and its members as (name, value's text), names repeated and escaped at will."""
    known = [*sorted(reserved.NAMES), "vllm_xargs", "sampling_params", "model", "x"]
    names = st.sampled_from(known) | st.text(max_size=3)
    members = []
    text = []
    for _ in range(draw(st.integers(0, 6))):
        name = draw(names)
        value = draw(values)
        raw = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
        spelt = json.dumps(name)
        if name.isidentifier() and name.isascii():
            spelt = '"' + escaped(name, draw(st.sets(st.integers(0, 12), max_size=3))) + '"'
        text.append(draw(spaces) + spelt + draw(spaces) + ":" + draw(spaces) + raw + draw(spaces))
        members.append((name, raw))
    return draw(spaces) + "{" + ",".join(text) + "}" + draw(spaces), members


def pairs(text: str) -> list[tuple[str, Any]]:
    return json.loads(text, object_pairs_hook=lambda p: p)


def without(members: Any, rules: Any) -> Any:
    """The rules again, over lists of pairs: an oracle that shares nothing with the code but the table."""
    if not (isinstance(members, list) and all(isinstance(m, tuple) for m in members)):
        return members
    return [
        (name, without(value, rules[name]) if name in rules else value)
        for name, value in members
        if not (name in rules and rules[name] is None)
    ]


@given(bodies())
def test_strip_is_the_original_less_the_members(body: tuple[str, list[tuple[str, str]]]) -> None:
    text, members = body
    stripped = reserved.strip(text.encode())
    expected = without(pairs(text), reserved._RULES)
    if stripped is None:
        assert expected == pairs(text)
        return
    assert pairs(stripped.decode()) == expected
    assert expected != pairs(text)
    at = 0
    for name, raw in members:    # the others' bytes survive, in order
        if name not in reserved._RULES:
            at = stripped.decode().index(raw, at) + len(raw)


def guard(body: bytes, cuts: list[int]) -> bool:
    watch = reserved.Guard()
    found = False
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        found = watch.feed(body[start:end])
    return found


@pytest.mark.parametrize("name", sorted(reserved.NAMES))
@pytest.mark.parametrize("positions", [set(), {0}, {2, 5}, set(range(30))], ids=str)
def test_guard_sees_a_name_cut_anywhere(name: str, positions: set[int]) -> None:
    body = b'{"a":"b" , "' + escaped(name, positions).encode() + b'" \n\t: 1}'
    for cut in range(len(body)):
        assert guard(body, [cut]), cut
    assert guard(body, list(range(1, len(body))))
    upper = body.replace(b"\\u005f", b"\\u005F")
    assert guard(upper, [])


def test_guard_waits_for_the_colon_over_any_whitespace() -> None:
    body = b'{"bootstrap_room"' + b" " * 5_000
    watch = reserved.Guard()
    for byte in body:
        assert not watch.feed(bytes((byte,)))
    assert watch.feed(b":")
    assert watch.feed(b"")
    assert watch.feed(b"anything")


@pytest.mark.parametrize(
    "text",
    [
        'say "kv_transfer_params": 1',
        '{"kv_transfer_params": {"do_remote_prefill": true}}',
        '\\"kv_transfer_params":',
        "kv_transfer_params",
        '"bootstrap_host"' + " " * 500 + ":",
        "\\u006bv_transfer_params",
    ],
)
def test_guard_ignores_texts_that_mention_a_name(text: str) -> None:
    for ensure in (True, False):
        body = json.dumps({"messages": [{"content": text}, text], "stop": [text]}, ensure_ascii=ensure).encode()
        for cuts in ([], list(range(1, len(body)))):
            assert not guard(body, cuts)


@pytest.mark.parametrize(
    "body",
    [
        b'{"kv_transfer_params2":1}',
        b'{"x":"bootstrap_room","y":1}',
        b'["routed_dp_rank" , 1]',
        b'{"\\"bootstrap_host":1}',
    ],
)
def test_guard_ignores_other_tokens(body: bytes) -> None:
    assert not guard(body, [])
    assert not guard(body, list(range(1, len(body))))


def test_guard_refuses_utf16_and_utf32() -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
        body = '{"kv_transfer_params":1}'.encode(encoding)
        assert guard(body, [])
        assert guard(body, list(range(1, len(body))))


def test_guard_lets_compressed_bodies_pass() -> None:
    for body in (gzip.compress(b'{"prompt":"' + b"x" * 999, mtime=0), zlib.compress(bytes(999))):
        assert b"\0" in body
        assert not guard(body, [1, 2, 3, 4])


def has_reserved_name(members: Any) -> bool:
    if isinstance(members, list):
        return any(has_reserved_name(m) for m in members)
    if isinstance(members, tuple):
        return members[0] in reserved.NAMES or has_reserved_name(members[1])
    return False


@given(bodies(), st.data())
def test_guard_agrees_with_a_parser(body: tuple[str, list[tuple[str, str]]], data: st.DataObject) -> None:
    text = body[0].encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    assert guard(text, cuts) == has_reserved_name(pairs(body[0]))


fragments = st.sampled_from([b'"', b"\\", b"bootstrap_room", b"\\u0062ootstrap_room", b" " * 90, b":", b","])


@given(st.lists(fragments, max_size=9), st.data())
def test_guard_any_split_of_anything(parts: list[bytes], data: st.DataObject) -> None:
    body = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    assert guard(body, cuts) == guard(body, [])
