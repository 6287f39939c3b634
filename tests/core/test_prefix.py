from __future__ import annotations

import json
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from eluvix_extproc.core.prefix import MATERIAL_CAP_BYTES, PART_BYTES, chain
from eluvix_extproc.core.prompt import Api, PrefixChain, Prompt, TokenCount
from eluvix_extproc.prompt import parse

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "prefix" / "vectors.json").read_text())

UNKNOWN = TokenCount(0, False)


def parsed(body: dict[str, Any], api: Api = Api.OPENAI_CHAT, **dumps: Any) -> Prompt:
    raw = json.dumps(body, **dumps).encode()
    return parse(api, raw, body_bytes=len(raw))


def chat(messages: list[dict[str, Any]], **fields: Any) -> Prompt:
    return parsed({"model": "m", "messages": messages, **fields})


def completion(prompt: Any, **fields: Any) -> Prompt:
    return parsed({"model": "m", "prompt": prompt, **fields}, Api.OPENAI_COMPLETIONS)


def of(prompt: Prompt, count: TokenCount = UNKNOWN, model: str = "m", adapter: str = "") -> PrefixChain:
    return chain(prompt, count, model=model, adapter=adapter)


def ids(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


# The definition once more, from docs/prefix-key.md and with nothing but hashlib and json.
def reference(body: dict[str, Any], model: str, adapter: str) -> tuple[bytes, list[bytes]]:
    def canonical_json(value: Any) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    def canonical(message: dict[str, Any]) -> bytes:
        content = message.get("content")
        if content is None:
            data, kind = b"", b"n"
        elif isinstance(content, str):
            data, kind = content.encode(), b"s"
        else:
            data, kind = canonical_json(content), b"j"
        rest = canonical_json({k: v for k, v in message.items() if k != "content" and v is not None})
        return data + rest + struct.pack("<Q", len(data)) + kind

    tools = b"" if body.get("tools") is None else canonical_json(body["tools"])
    seed = b"eluvix-prefix-1"
    for field in (model.encode(), adapter.encode(), (body.get("cache_salt") or "").encode(), tools):
        seed += struct.pack("<Q", len(field)) + field
    seed = sha256(seed).digest()
    material = b""
    for message in body["messages"]:
        material += canonical(message) + struct.pack("<Q", len(canonical(message)))
        if message["role"] == "user":
            break
    digest = sha256(seed + b"message-chain").digest()
    digests = []
    for message in body["messages"]:
        digest = sha256(digest + canonical(message)).digest()
        digests.append(digest)
    return sha256(seed + b"messages" + material[:131_072]).digest(), digests


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_golden_vectors(vector: dict[str, Any]) -> None:
    prompt = parsed(vector["body"], Api(vector["api"]))
    token_ids = ids(*range(*vector.get("ids_range", [0])))
    count = TokenCount(vector["tokens"], True, tuple(vector.get("per_message", ())), token_ids)
    result = of(prompt, count, vector["model"], vector["adapter"])
    assert result.root.hex() == vector["root"]
    assert [[f"{point.key:016x}", point.tokens] for point in result.points] == vector["points"]


def test_the_documented_example_is_the_first_vector() -> None:
    page = (Path(__file__).parents[2] / "docs" / "prefix-key.md").read_text()
    vector = VECTORS["vectors"][0]
    assert f"**key** | `{vector['root']}`" in page
    assert all(f"point `{key}`" in page for key, _ in vector["points"])
    assert json.dumps(vector["body"]["messages"]) in page


texts = st.text(max_size=8)
contents = st.none() | texts | st.lists(texts, max_size=2)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": contents},
    optional={"name": st.none() | texts},
)
openings = st.tuples(
    st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "assistant"]), "content": texts}), max_size=2),
    texts,
).map(lambda o: [*o[0], {"role": "user", "content": o[1]}])
tools = st.none() | st.lists(st.dictionaries(texts, st.integers() | texts, max_size=2), max_size=2)


@given(openings, st.lists(turns, max_size=4), tools, texts, texts, texts)
def test_the_definition(opening: Any, more: Any, tools: Any, model: str, adapter: str, salt: str) -> None:
    body = {"model": "client's name", "messages": opening + more, "tools": tools, "cache_salt": salt}
    boundaries = tuple(range(1, len(opening + more) + 1))
    result = of(parsed(body), TokenCount(len(boundaries), True, boundaries), model, adapter)
    root, digests = reference(body, model, adapter)
    assert result.root == root
    assert [point.key for point in result.points] == [xxh3_64_intdigest(digest) for digest in digests]


lengths = st.lists(st.integers(1, 9), min_size=10, max_size=10)


@given(openings, st.lists(turns, max_size=4), st.lists(turns, max_size=3), lengths)
def test_a_follow_up_turn_keeps_root_and_points(opening: Any, turns: Any, more: Any, lengths: list[int]) -> None:
    before, after = opening + turns, opening + turns + more
    ends = [sum(lengths[: i + 1]) for i in range(len(after))]
    short = of(chat(before), TokenCount(ends[len(before) - 1], True, tuple(ends[: len(before)])))
    long = of(chat(after, stream=True, temperature=1), TokenCount(ends[-1], True, tuple(ends)))
    assert short.root == long.root
    assert short.points == long.points[: len(short.points)]
    assert [point.tokens for point in long.points] == ends


@given(openings, st.lists(turns, max_size=3), st.integers(0, 4), st.booleans())
def test_spelling_changes_nothing(opening: Any, more: Any, indent: int, ensure: bool) -> None:
    body = {"model": "m", "messages": opening + more, "tools": [{"b": "é", "a": None}]}
    reordered = [dict(reversed(m.items())) for m in opening + more]
    again = {"tools": [{"a": None, "b": "é"}], "messages": reordered, "model": "m"}
    count = TokenCount(1000, False)
    assert of(parsed(body), count) == of(parsed(again, indent=indent, ensure_ascii=ensure), count)


BASE: dict[str, Any] = {
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    "tools": [{"a": 1}],
    "cache_salt": "x",
}


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "u"}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "U"}]},
        {"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": "u"}]},
        {"messages": [{"role": "user", "content": "u"}]},
        {"messages": [{"role": "system", "content": "su"}, {"role": "user", "content": ""}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": ["u"]}]},
        {"tools": [{"a": 2}]},
        {"tools": None},
        {"cache_salt": "y"},
        {"cache_salt": None},
    ],
    ids=range(10),
)
def test_what_stands_before_makes_another_key(change: dict[str, Any]) -> None:
    count = TokenCount(600, True, (), ids(*range(512)))
    one, other = of(chat(**BASE), count), of(chat(**{**BASE, **change}), count)
    assert one.root != other.root
    last = {result.points[-1].key for result in (one, other)}
    assert len(last) == 2 and one.points[-1].tokens == other.points[-1].tokens == 600
    salted = "cache_salt" in change
    blocks = [{p.key for p in result.points if p.tokens in (256, 512)} for result in (one, other)]
    assert (blocks[0] & blocks[1] == set()) == salted


def test_model_and_adapter_make_other_keys() -> None:
    count = TokenCount(600, True, (), ids(*range(512)))
    prompts = [chat(**BASE), completion("x" * 3_000), completion([1] * 600)]
    for prompt in prompts:
        names = (("m", ""), ("n", ""), ("m", "a"), ("", "ma"))
        results = [of(prompt, count, model, adapter) for model, adapter in names]
        assert len({result.root for result in results}) == len(results)
        keys = [point.key for result in results for point in result.points]
        assert keys and len(set(keys)) == len(keys)


def test_later_messages_are_not_in_the_root() -> None:
    later = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}]
    assert of(chat(BASE["messages"])).root == of(chat(BASE["messages"] + later)).root


def test_only_a_head_read_gives_the_same_root() -> None:
    opening = [{"role": "system", "content": "é" * 40_000}, {"role": "user", "content": 'say "' * 200_000}]
    body = {"model": "m", "messages": opening}
    raw = json.dumps(body).encode()
    whole = of(parse(Api.OPENAI_CHAT, raw, body_bytes=len(raw)), TokenCount(len(raw) // 4, False))
    for size in (700_000, 900_001, len(raw) - 2):
        head = parse(Api.OPENAI_CHAT, raw[:size], body_bytes=len(raw), complete=False)
        cut = of(head, TokenCount(len(raw) // 4, False))
        assert cut.root == whole.root
        assert [p.key for p in cut.points] == [p.key for p in whole.points][: len(cut.points)]
        assert len(cut.points) > 25
        for one, other in zip(cut.points, whole.points, strict=False):
            assert one.tokens == pytest.approx(other.tokens, rel=0.25)


def test_a_message_read_in_part_has_no_boundary() -> None:
    raw = b'{"model":"m","messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two'
    head = parse(Api.OPENAI_CHAT, raw, body_bytes=1_000, complete=False)
    assert len(of(head, TokenCount(250, False)).points) == 1


def test_prompts_that_differ_beyond_the_cap_share_a_root() -> None:
    def root(text: str) -> bytes:
        return of(chat([{"role": "user", "content": text}])).root

    common = "x" * MATERIAL_CAP_BYTES
    assert root(common + "a") == root(common + "b")
    assert root(common[1:] + "a") != root(common[1:] + "b")


def test_documents_share_parts_however_they_go_on() -> None:
    document = "d" * (3 * PART_BYTES)
    one, other = (
        of(chat([{"role": "user", "content": document + question}]), TokenCount(12_000, False))
        for question in ("?", "!")
    )
    shared = {p.key for p in one.points} & {p.key for p in other.points}
    assert len(shared) == 3
    assert [p.tokens for p in one.points] == sorted(p.tokens for p in one.points)


def test_shares_of_an_estimate_follow_the_text() -> None:
    prompt = chat([{"role": "user", "content": "a" * 300}, {"role": "assistant", "content": "é" * 50}])
    assert [p.tokens for p in of(prompt, TokenCount(100, False)).points] == [75, 100]
    images = chat([{"role": "user", "content": []}, {"role": "user", "content": []}])
    assert [p.tokens for p in of(images, TokenCount(100, False)).points] == [50, 100]
    half = msgspec.structs.replace(prompt, complete=False, read_bytes=500, body_bytes=1_000)
    assert [p.tokens for p in of(half, TokenCount(100, False)).points] == [37]


def test_points_grow_in_tokens() -> None:
    prompt = chat([{"role": "user", "content": "a"}] * 5)
    result = of(prompt, TokenCount(800, True, (100, 300, 511, 512, 800), ids(*range(800))))
    assert [p.tokens for p in result.points] == [100, 256, 300, 511, 512, 512, 768, 800]


def test_token_blocks_are_the_same_however_the_ids_came() -> None:
    values = list(range(600))
    by_text = of(completion("text"), TokenCount(600, True, (), ids(*values)))
    by_ids = of(completion(values))
    assert by_text.points == by_ids.points
    assert [p.tokens for p in by_ids.points] == [256, 512]
    assert of(completion([values[:300], values])).points == of(completion(values[:300])).points
    extended = of(completion([*values, *values]))
    assert extended.points[:2] == by_ids.points and extended.root == by_ids.root
    changed = of(completion([*values[:300], 7, *values[301:]]))
    assert changed.points[0] == by_ids.points[0] and changed.points[1] != by_ids.points[1]


def test_text_blocks() -> None:
    result = of(completion("é" * 1_100), TokenCount(550, False))
    assert [p.tokens for p in result.points] == [256, 512]
    longer = of(completion("é" * 1_100 + "x" * 200), TokenCount(600, False))
    assert longer.root == result.root
    assert [p.key for p in longer.points] == [p.key for p in result.points]
    assert of(completion(["é" * 1_100, "y" * 2_200]), TokenCount(1_100, False)).points == result.points


def test_kinds_of_prompt_do_not_collide() -> None:
    roots = {of(p).root for p in (completion("a"), completion([97]), chat([{"role": "user", "content": "a"}]))}
    assert len(roots) == 3 and all(len(root) == 32 for root in roots)


def test_nothing_known() -> None:
    for prompt in (
        completion(""),
        completion([[]]),
        parse(Api.OPENAI_CHAT, b'{"model":"m","mess', body_bytes=99, complete=False),
        parse(Api.OPENAI_COMPLETIONS, b'{"prompt":[', body_bytes=99, complete=False),
    ):
        assert of(prompt, TokenCount(24, False)) == PrefixChain(b"")


def test_the_root_ends_with_the_first_turn_of_the_user() -> None:
    turns = [{"role": "system", "content": "s" * 40}, {"role": "user", "content": "u" * 40}]
    answered = [*turns, {"role": "assistant", "content": "a" * 40}, {"role": "user", "content": "v" * 40}]
    count = TokenCount(100, True, per_message=(20, 40, 60, 80))
    assert of(chat(answered), count).root_tokens == 40
    assert of(chat(turns[:1]), TokenCount(20, True, per_message=(20,))).root_tokens == 20
    assert of(completion("text"), TokenCount(2, True)).root_tokens == 0
