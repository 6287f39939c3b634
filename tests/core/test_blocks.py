"""Block hashes against real events, the engine's own function and published vectors."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.blocks import (
    Extra,
    Medium,
    sglang_chain,
    sglang_digests,
    unpacked,
    vllm_chain,
    vllm_digests,
    vllm_event,
    vllm_root,
)

KV = Path(__file__).parents[1] / "data" / "kv"
IDS = list(range(1, 33))


def test_published_vectors() -> None:
    assert vllm_chain(IDS, 16) == [8866452693264111234, 807986237951177663]
    assert vllm_chain(IDS, 16, seed="0")[0] == 3236607068019569386
    assert sglang_chain(IDS, 16) == [8635429971592222890, 1256577331724852459]


def stored(name: str) -> list[tuple[str, dict[str, Any]]]:
    """(case, event) of each BlockStored, decoded anew from the payload."""
    found = []
    for message in json.loads((KV / f"{name}.json").read_text()):
        _, events, *_ = msgspec.msgpack.decode(bytes.fromhex(message["payload_hex"]))
        found += [(message["case"], event) for event in events if event["type"] == "BlockStored"]
    return found


@pytest.mark.parametrize(("name", "seed"), [("events-seed0", "0"), ("events-defaultseed-bytes", "")])
def test_every_block_that_a_real_engine_announced(name: str, seed: str) -> None:
    """Blocks behind others go on from their parents, which were announced before."""
    known: dict[Any, tuple[bytes, int]] = {None: (b"", 0)}
    cases = set()
    for case, event in stored(name):
        parent, before = known[event["parent_block_hash"]]
        salt = next((keys[0] for keys in event["extra_keys"] if keys), "")
        digests = vllm_digests(
            event["token_ids"], event["block_size"], seed=seed, extra=Extra(salt), parent=parent, first=before
        )
        as_told = [digest if name.endswith("bytes") else vllm_event(digest) for digest in digests]
        assert as_told == event["block_hashes"], case
        for told, digest in zip(as_told, digests, strict=True):
            before += 1
            known[told] = (digest, before)
        cases.add(case)
    assert {"cold", "warm longer", "decode fills blocks", "salted"} <= cases


HASHES = json.loads((KV / "vllm-0.32-hashes.json").read_text())["cases"]


@pytest.mark.parametrize("case", HASHES, ids=lambda case: case["what"])
def test_adapters_media_embeddings_and_salts_as_the_engine_has_them(case: dict[str, Any]) -> None:
    adapter = tuple(case["adapter"]) if "adapter" in case else None
    media = tuple(Medium(*medium) for medium in case.get("media", ()))
    extra = Extra(case.get("salt", ""), adapter, media, tuple(map(bytes.fromhex, case.get("embeddings", ()))))
    digests = vllm_digests(case["ids"], case["block_size"], seed=case["seed"], extra=extra)
    assert [digest.hex() for digest in digests] == case["hashes"]


def test_older_engines_salt_the_first_block_without_a_name() -> None:
    tagged, bare = (vllm_digests(IDS, 16, extra=Extra("s", tagged=flag)) for flag in (True, False))
    assert tagged[0] != bare[0] and tagged[1] != bare[1]


_TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=90)


@given(_TOKENS, st.sampled_from([1, 16, 32]), st.integers(0, 6))
def test_going_on_is_the_same_as_beginning_anew(ids: list[int], size: int, known: int) -> None:
    whole = vllm_digests(ids, size)
    known = min(known, len(whole))
    rest = vllm_digests(ids[known * size :], size, parent=whole[known - 1] if known else b"", first=known)
    assert whole[:known] + rest == whole
    pages = sglang_digests(ids, size)
    assert pages[:known] + sglang_digests(ids[known * size :], size, parent=pages[known - 1] if known else b"") == pages


@given(_TOKENS, _TOKENS)
def test_equal_blocks_are_those_of_equal_beginnings(one: list[int], other: list[int]) -> None:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    shared = sum(a == b for a, b in zip(vllm_digests(one, 4), vllm_digests(other, 4), strict=False))
    assert shared == min(same // 4, len(one) // 4, len(other) // 4)


def test_only_whole_blocks_and_any_packing() -> None:
    assert vllm_digests(IDS[:15], 16) == [] == sglang_digests(IDS[:15], 16)
    packed = array("I", IDS).tobytes()
    assert list(unpacked(packed)) == IDS and vllm_digests(unpacked(packed), 16) == vllm_digests(IDS, 16)
    assert vllm_root() != vllm_root("0")
