from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from eluvix_extproc.tokens.counter import pack_ids
from eluvix_extproc.tokens.cuts import sure_cuts
from eluvix_extproc.tokens.pieces import PieceEncoder
from tests.tokens.prompts import TINY

ALPHABET = "ab<|" + " \n"


def token(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False} | flags


def spec(*added: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"added_tokens": list(added), "model": {"type": "BPE"}} | fields


def test_plain_special_tokens_are_cuts() -> None:
    assert sure_cuts(spec(token("<|a|>"), token("<|b|>")), ["<|b|>", "<|c|>", "<|a|>"]) == ("<|b|>", "<|a|>")


@pytest.mark.parametrize(
    "rival",
    ["<|a|>x", "x<|a|>", "x<", "x<|a"],
    ids=["longer", "ends with it", "ends with its first character", "ends with most of it"],
)
def test_a_token_that_another_may_cover_is_none(rival: str) -> None:
    assert sure_cuts(spec(token("<|a|>"), token(rival)), ["<|a|>"]) == ()


def test_a_token_that_may_overlap_itself_is_none() -> None:
    assert sure_cuts(spec(token("aba")), ["aba"]) == ()


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
def test_a_token_that_swallows_space_is_none_but_disturbs_no_other(flag: str) -> None:
    assert sure_cuts(spec(token("<a>", **{flag: True}), token("<b>")), ["<a>", "<b>"]) == ("<b>",)


@pytest.mark.parametrize(
    "fields",
    [
        {"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "prepend_scheme": "first"}]}},
        {"pre_tokenizer": {"type": "OfTomorrow"}},
        {"normalizer": {"type": "OfTomorrow"}},
        {"post_processor": {"type": "OfTomorrow"}},
        {"model": {"type": "BPE", "dropout": 0.1}},
        {"model": {"type": "OfTomorrow"}},
    ],
)
def test_what_may_look_beyond_a_stretch_rules_out_all_cuts(fields: dict[str, Any]) -> None:
    assert sure_cuts(spec(token("<a>"), **fields), ["<a>"]) == ()


def test_a_whole_word_token_rules_out_all_cuts() -> None:
    assert sure_cuts(spec(token("<a>"), token("b", single_word=True)), ["<a>"]) == ()


def test_a_normalized_token_is_a_cut_only_where_nothing_is_normalized() -> None:
    late = token("<a>", normalized=True)
    assert sure_cuts(spec(late), ["<a>"]) == ("<a>",)
    assert sure_cuts(spec(late, normalizer={"type": "Sequence", "normalizers": []}), ["<a>"]) == ("<a>",)
    assert sure_cuts(spec(late, normalizer={"type": "NFC"}), ["<a>"]) == ()
    assert sure_cuts(spec(late, token("a>")), ["<a>"]) == ()


def test_the_tiny_tokenizer_is_cut_at_its_special_tokens() -> None:
    tiny = json.loads(TINY.read_text())
    assert sure_cuts(tiny, ["<|turn|>", "<|end|>", "<note>", "<late>"]) == ("<|turn|>", "<|end|>", "<note>")


flags = st.fixed_dictionaries({name: st.booleans() for name in ("lstrip", "rstrip", "normalized")})
# Chosen to overlap, hold and prolong one another. None begins or ends with a space: `tokenizers` itself panics where a
# token with rstrip runs into one that does.
contents = st.sampled_from(["a", "b", "ab", "ba", "bab", "aba", "a<", "<b", "b<a", "<|", "|<", "<|a", "a|>", "b b"])
stretches = st.text("ab<| ", max_size=3)


@settings(max_examples=200, deadline=None)
@given(
    added=st.lists(st.tuples(contents, flags), min_size=1, max_size=4, unique_by=lambda entry: entry[0]),
    normalizer=st.sampled_from([None, normalizers.Strip(), normalizers.Replace("a", "b"), normalizers.Prepend("b")]),
    scheme=st.sampled_from([None, "always", "never"]),
    texts=st.lists(st.lists(st.one_of(stretches, st.integers(0, 3)), max_size=8), min_size=4, max_size=8),
)
def test_cutting_never_changes_an_id(
    added: list[tuple[str, dict[str, bool]]],
    normalizer: normalizers.Normalizer | None,
    scheme: str | None,
    texts: list[list[str | int]],
) -> None:
    vocabulary = {character: index for index, character in enumerate(dict.fromkeys(ALPHABET + "▁"))}
    model = models.BPE(vocab=vocabulary | {"ab": 50, "bb": 51}, merges=[("a", "b"), ("b", "b")])
    tokenizer = tokenizers.Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if scheme is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.add_tokens([AddedToken(content, **flags) for content, flags in added])

    cuts = sure_cuts(json.loads(tokenizer.to_str()), [content for content, _ in added])
    pieces = PieceEncoder(lambda batch: [encoded(tokenizer, text) for text in batch], cuts, None, 0)
    for parts in texts:
        text = "".join(part if isinstance(part, str) else added[part % len(added)][0] for part in parts)
        assert pieces.encode(text).ids == encoded(tokenizer, text), (cuts, text)


def encoded(tokenizer: tokenizers.Tokenizer, text: str) -> bytes:
    return pack_ids(tokenizer.encode(text, add_special_tokens=False).ids)
