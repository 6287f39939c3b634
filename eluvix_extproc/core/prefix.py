"""The prefix key and the prefix chain: what `x-eluvix-kv-prefix-hash` and the prefix index are made of.

docs/prefix-key.md defines both for other implementations, with vectors; a change here is a change of contract and
needs a new `_VERSION`. Notation: `‖` joins bytes, integers are little-endian.

    seed = SHA256(version ‖ for each of model, adapter, salt, tools: length as u64 ‖ bytes)
    root = SHA256(seed ‖ kind ‖ material)

What is in the key never changes while a conversation grows, and is the same on every replica: the first messages up
to and including the first one of the user, and what stands before them in the engine's prompt.

The material of the messages is cut at 131,072 bytes. Of a body above `server.maxHeldBytes` only the head is read,
so the key may depend only on what every head holds; and where the head ends shifts from turn to turn, because what
a client puts before the messages does. The first 128 KiB are safely inside any head of 1 MiB, and every message's
bytes begin with its text, its lengths standing behind. Prompts that differ only beyond share a key, as they share
the KV cache up to there.
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache
from hashlib import sha256
from struct import Struct

from xxhash import xxh3_64_intdigest

from eluvix_extproc.core import kept_chains
from eluvix_extproc.core.hints import VolatileLines
from eluvix_extproc.core.prompt import Message, PrefixChain, PrefixPoint, Prompt, TokenCount
from eluvix_extproc.core.recall import joined_keys

MATERIAL_CAP_BYTES = 131_072
ROOT_TEXT_BYTES = 1_024
ROOT_IDS = 256
BLOCK_TOKENS = 256
TEXT_BLOCK_BYTES = 1_024
PART_BYTES = 16_384

_VERSION = b"eluvix-prefix-1"
_ID_BYTES = 4
_BLOCK_BYTES = BLOCK_TOKENS * _ID_BYTES
# A shorter conversation is hashed sooner than it is found.
_WORTH_KEEPING_BYTES = 4_096
_KEPT_SEEDS = 256
_LONGEST_KEPT = 256    # a client may name a model by a megabyte
_u64 = Struct("<Q").pack


def chain(
    prompt: Prompt, count: TokenCount, *, model: str, adapter: str, volatile: VolatileLines | None = None
) -> PrefixChain:
    """The root key of a prompt and the prefixes of it that the index can know.

    `model` is the configured model's name (not the client's spelling of it), `adapter` the LoRA adapter's name or "".
    `volatile` lines of a system prompt are left out of the root alone: the points say what a KV cache holds.
    Points are of these kinds, in one list by growing token length:

    * message boundaries: h_i = SHA256(h_{i-1} ‖ canonical_i). Not for a last message that was read in part.
    * parts of long messages, when there are no token ids: SHA256(h_{i-1} ‖ first k × 16,384 bytes of canonical_i ‖
      "p"), so that documents find each other however they go on.
    * token blocks, when there are token ids: h_j = SHA256(h_{j-1} ‖ ids of the j-th 256 tokens as u32).
    * text blocks, for completions without token ids: the same over 1,024 bytes of UTF-8 each.

    Each chain starts from a digest of the seed and its own name; in the blocks' seed the tools are empty, for the
    tokens hold them. Token lengths are exact where `count` tells them and
    shares of `count.total` by text size elsewhere. Of a batch the first sequence stands for all. A prompt of which
    nothing is known has the root b"" and no points. Costs about 3 us a KB.
    """
    if prompt.salt or len(model) > _LONGEST_KEPT:
        seed = _seed(model, adapter, prompt.salt, b"")
    else:
        seed = _seed_without_salt(model, adapter)
    if prompt.messages:
        whole = _seed(model, adapter, prompt.salt, prompt.tools) if prompt.tools else seed
        return _of_messages(prompt, count, whole, seed, volatile)    # the ids hold the tools already
    if prompt.texts and prompt.texts[0]:
        return _of_text(prompt, count, seed)
    if prompt.token_ids and prompt.token_ids[0]:
        ids = _packed(prompt.token_ids[0])
        root = sha256(seed + b"ids" + ids[: ROOT_IDS * _ID_BYTES]).digest()
        return PrefixChain(root, tuple(_token_blocks(ids, seed)[0]))
    return PrefixChain(b"")


def _seed(model: str, adapter: str, salt: str, tools: bytes) -> bytes:
    digest = sha256(_VERSION)
    for field in (model.encode(), adapter.encode(), salt.encode(), tools):
        digest.update(_u64(len(field)))
        digest.update(field)
    return digest.digest()


@lru_cache(_KEPT_SEEDS)
def _seed_without_salt(model: str, adapter: str) -> bytes:
    """Kept, for nearly every request has one of a few seeds. Salts are the clients' secrets and are not."""
    return _seed(model, adapter, "", b"")


@lru_cache(_KEPT_SEEDS)
def _message_chain_start(seed: bytes) -> bytes:
    return sha256(seed + b"message-chain").digest()


def _of_messages(
    prompt: Prompt, count: TokenCount, seed: bytes, block_seed: bytes, volatile: VolatileLines | None
) -> PrefixChain:
    messages, ends = prompt.messages, count.per_message
    if len(ends) != len(messages):
        ends = _boundaries_by_size(prompt, count)
    keys = joined_keys(messages) if prompt.complete and prompt.read_bytes >= _WORTH_KEEPING_BYTES else b""
    kind = kept_chains.kind(seed, bool(count.ids))
    kept = kept_chains.find(keys, kind, ends) if keys else None
    known = len(kept.tokens) if kept else 0

    if kept is not None and kept.root and not volatile:
        root, length, final, steadied = kept.root, kept.root_length, True, False
    else:
        root, length, final, steadied = _root(messages, seed, volatile)
    digest, points = _message_points(
        messages[known:],
        ends[known:],
        kept.digest if kept else _message_chain_start(seed),
        ends[known - 1] if known else 0,
        cut=None if prompt.complete else messages[-1],
        parts=not count.ids,
    )
    all_points = (*kept.points, *points) if kept else tuple(points)
    blocks, digests = _token_blocks(count.ids, block_seed, kept.blocks if kept else None) if count.ids else ([], [])
    merged = kept_chains.merge(kept, all_points, tuple(blocks))
    if keys and known < len(messages):
        kept_blocks = kept_chains.with_ends(blocks, digests, count.ids, _BLOCK_BYTES)
        kept_root = root if final and not volatile else b""
        chain = kept_chains.Kept(digest, ends, kept_root, length, all_points, kept_blocks, merged)
        kept_chains.keep(keys, kind, chain, kept)
    return PrefixChain(root, merged, ends[length - 1], steadied)


def _root(
    messages: tuple[Message, ...], seed: bytes, volatile: VolatileLines | None
) -> tuple[bytes, int, bool, bool]:
    """The root, how many messages have a part in it, whether later ones have none, and whether lines were left out."""
    root = sha256(seed + b"messages")
    room = MATERIAL_CAP_BYTES
    steadied = False
    length = 0
    for message in messages:
        if room <= 0:
            break
        canonical = message.canonical
        steady = volatile.steady(message) if volatile else canonical
        steadied = steadied or steady is not canonical
        size = len(steady)
        if size + 8 <= room:
            root.update(steady)
            root.update(_u64(size))
        else:
            root.update((steady[:room] + _u64(size))[:room])
        room = 0 if message.role == "user" else room - size - 8
        length += 1
    return root.digest(), length, room <= 0, steadied


def _message_points(
    messages: tuple[Message, ...],
    ends: tuple[int, ...],
    digest: bytes,
    start: int,
    *,
    cut: Message | None,
    parts: bool,
) -> tuple[bytes, list[PrefixPoint]]:
    """The digest behind the messages and their points; `digest` and `start` (tokens) are of what stands before."""
    points: list[PrefixPoint] = []
    for message, end in zip(messages, ends, strict=True):
        canonical = message.canonical
        if not parts or len(canonical) <= PART_BYTES:
            digest = sha256(digest + canonical).digest()
        else:
            digest, of_parts = _parts(digest, canonical)
            for key, share in of_parts:
                if (tokens := start + int((end - start) * share)) > 0:
                    points.append(PrefixPoint(key, tokens))
        start = end
        if end > 0 and message is not cut:
            points.append(PrefixPoint(xxh3_64_intdigest(digest), end))
    return digest, points


def _parts(digest: bytes, canonical: bytes) -> tuple[bytes, list[tuple[int, float]]]:
    """The digest behind a long message, and key and share (0-1) of each part of it."""
    state = sha256(digest)
    parts = []
    fed = 0
    for end in range(PART_BYTES, len(canonical), PART_BYTES):
        state.update(canonical[fed:end])
        fed = end
        part = state.copy()
        part.update(b"p")
        parts.append((xxh3_64_intdigest(part.digest()), end / len(canonical)))
    state.update(canonical[fed:])
    return state.digest(), parts


def _boundaries_by_size(prompt: Prompt, count: TokenCount) -> tuple[int, ...]:
    """Cumulative tokens at the end of each message, where the count does not tell them."""
    sizes = [_utf8_bytes(message.text) for message in prompt.messages]
    if not any(sizes):
        sizes = [1] * len(sizes)
    scale = _read_tokens(prompt, count) / sum(sizes)
    ends = []
    total = 0
    for size in sizes:
        total += size
        ends.append(int(total * scale))
    return tuple(ends)


def _of_text(prompt: Prompt, count: TokenCount, seed: bytes) -> PrefixChain:
    text = prompt.texts[0].encode()
    root = sha256(seed + b"text" + text[:ROOT_TEXT_BYTES]).digest()
    if count.ids and len(prompt.texts) == 1:
        return PrefixChain(root, tuple(_token_blocks(count.ids, seed)[0]))
    scale = _read_tokens(prompt, count) / sum(map(_utf8_bytes, prompt.texts))
    points = []
    digest = sha256(seed + b"text-blocks").digest()
    for end in range(TEXT_BLOCK_BYTES, len(text) + 1, TEXT_BLOCK_BYTES):
        digest = sha256(digest + text[end - TEXT_BLOCK_BYTES : end]).digest()
        points.append(PrefixPoint(xxh3_64_intdigest(digest), int(end * scale)))
    return PrefixChain(root, tuple(point for point in points if point.tokens > 0))


def _token_blocks(
    ids: bytes, seed: bytes, before: kept_chains.Blocks | None = None
) -> tuple[list[PrefixPoint], list[bytes]]:
    """The points of the chain over whole blocks of 256 token ids, which come as u32, and the digests of the last few.
    It goes on from `before` as far as the ids agree."""
    count, digest = before.shared(ids, _BLOCK_BYTES) if before else (0, b"")
    if not count:
        digest = sha256(seed + b"token-blocks").digest()
    points = list(before.points[:count]) if before else []
    digests = [digest] if count else []
    for end in range((count + 1) * _BLOCK_BYTES, len(ids) + 1, _BLOCK_BYTES):
        digest = sha256(digest + ids[end - _BLOCK_BYTES : end]).digest()
        digests.append(digest)
        points.append(PrefixPoint(xxh3_64_intdigest(digest), end // _ID_BYTES))
    return points, digests[-kept_chains.STEPS_BACK :]


def _read_tokens(prompt: Prompt, count: TokenCount) -> float:
    """Tokens of what was read: `count.total` is of the whole body, known or announced."""
    if prompt.complete or not 0 < prompt.read_bytes < prompt.body_bytes:
        return count.total
    return count.total * prompt.read_bytes / prompt.body_bytes


def _packed(ids: tuple[int, ...]) -> bytes:
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
