"""Block hashes as the engines make them, so that what a worker announces to hold can be told from a prompt.

A block is a fixed number of tokens; its hash covers its own tokens and, through its parent, all before it. Whole blocks
only, and the last token that was generated belongs to none: its KV is not computed.

vLLM with `--prefix-caching-hash-algo sha256_cbor` (v1/core/kv_cache_utils.py in 0.32):

    h_i = SHA256(CBOR([h_{i-1}, [token ids of block i], extra keys or null]))
    h_-1 = SHA256(CBOR(seed)), the seed being PYTHONHASHSEED where the engine has it, else "vllm-none-hash"

The CBOR is canonical (RFC 8949, section 4.2: shortest forms). Its other algorithms hash Python pickles, or are not
cryptographic and seeded at random: these are not reproduced. KV events carry the low 8 bytes as an unsigned number,
unless VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0 has them carry all 32.

SGLang (mem_cache/hicache_storage.py, get_hash_str):

    h_i = SHA256(h_{i-1} ‖ token ids of page i as u32 little-endian), h_{i-1} left out for the first page

Its events carry the first 8 bytes as a signed number. Where a request has a salt its versions differ; such chains are
not reproduced.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from eluvix_extproc.core.value import Value

DEFAULT_SEED = "vllm-none-hash"
_NULL = b"\xf6"
_DIGEST_FIRST = b"\x83\x58\x20"    # a list of three, its first element 32 bytes
_ENCODED_KEPT = 1 << 17


class Medium(Value, frozen=True):
    """An image, audio or video in a prompt: the engine's identifier of it, and the tokens that stand for it."""

    identifier: str
    offset: int
    length: int


class Extra(Value, frozen=True):
    """What keeps equal tokens apart. `adapter` is the LoRA's name and the path that the engine loaded it from, `media`
    are in the order of their offsets. `embeddings` are of a prompt that is given so: of each whole block the SHA-256 of
    its part of the tensor. `tagged` False is the form of vLLM 0.22 to 0.30, which has the salt alone."""

    salt: str = ""
    adapter: tuple[str, str] | None = None
    media: tuple[Medium, ...] = ()
    embeddings: tuple[bytes, ...] = ()
    tagged: bool = True


NO_EXTRA = Extra()


def vllm_digests(
    ids: Sequence[int], block_size: int, *, seed: str = "", extra: Extra = NO_EXTRA, parent: bytes = b"", first: int = 0
) -> list[bytes]:
    """The 32-byte hash of every whole block of `ids`.

    To go on behind blocks that are known, give the last one's hash as `parent` and their number as `first`; `ids` then
    begin behind them. `seed` is the engine's PYTHONHASHSEED, "" when it has none.
    """
    digest = parent or vllm_root(seed)
    head = _head(4, block_size)
    tokens = list(map(_ENCODED.__getitem__, ids))
    keys = _NULL
    digests = []
    for number, start in enumerate(range(0, len(ids) - block_size + 1, block_size), first):
        if extra is not NO_EXTRA:
            keys = _extra_keys(extra, number, block_size)
        digest = sha256(b"".join((_DIGEST_FIRST, digest, head, *tokens[start : start + block_size], keys))).digest()
        digests.append(digest)
    return digests


def vllm_chain(
    ids: Sequence[int], block_size: int, *, seed: str = "", salt: str = "", extra: Extra = NO_EXTRA
) -> list[int]:
    """The same as KV events carry them. A `salt` alone need not be given as Extra."""
    extra = Extra(salt) if salt else extra
    return [vllm_event(digest) for digest in vllm_digests(ids, block_size, seed=seed, extra=extra)]


def vllm_event(digest: bytes) -> int:
    return int.from_bytes(digest[-8:], "big")


@lru_cache(64)
def vllm_root(seed: str = "") -> bytes:
    """What stands in the place of the first block's parent."""
    return sha256(_text(seed or DEFAULT_SEED)).digest()


def sglang_digests(ids: Sequence[int], page_size: int, *, parent: bytes = b"") -> list[bytes]:
    """The 32-byte hash of every whole page of `ids`, behind `parent` where some are known already."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    data = packed.tobytes()
    size = 4 * page_size
    digests = []
    for start in range(0, len(data) - size + 1, size):
        parent = sha256(parent + data[start : start + size]).digest()
        digests.append(parent)
    return digests


def sglang_chain(ids: Sequence[int], page_size: int) -> list[int]:
    """The same as KV events carry them."""
    return [sglang_event(digest) for digest in sglang_digests(ids, page_size)]


def sglang_event(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


def unpacked(ids: bytes) -> Sequence[int]:
    """Token ids from little-endian u32, as TokenCount has them."""
    numbers = array("I", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _extra_keys(extra: Extra, number: int, size: int) -> bytes:
    """In the engine's order: adapter, media that this block has a part of, salt (first block only), embeddings."""
    start = number * size
    keys = []
    if extra.adapter is not None:
        keys.append(_list(_text("lora"), _text(extra.adapter[0]), _text(extra.adapter[1])))
    keys += [
        _list(_text("mm"), _text(medium.identifier), _integer(medium.offset - start))
        for medium in extra.media
        if medium.offset < start + size and start < medium.offset + medium.length
    ]
    if extra.salt and number == 0:
        keys.append(_list(_text("cache_salt"), _text(extra.salt)) if extra.tagged else _text(extra.salt))
    if extra.embeddings:
        digest = extra.embeddings[number]
        keys.append(_list(_text("prompt_embeds"), _head(2, len(digest)) + digest))
    return _list(*keys) if keys else _NULL


def _list(*items: bytes) -> bytes:
    return _head(4, len(items)) + b"".join(items)


def _text(text: str) -> bytes:
    data = text.encode()
    return _head(3, len(data)) + data


def _integer(value: int) -> bytes:
    return _head(0, value) if value >= 0 else _head(1, -1 - value)


class _Encoded(dict[int, bytes]):
    """Token ids as CBOR. Kept, up to a limit: the same few ten thousand tokens make up most of all text."""

    def __missing__(self, value: int) -> bytes:
        encoded = _head(0, value)
        if len(self) < _ENCODED_KEPT:
            self[value] = encoded
        return encoded


def _head(kind: int, value: int) -> bytes:
    """A CBOR item's first bytes: major type and its number in the shortest form."""
    kind <<= 5
    if value < 24:
        return bytes((kind | value,))
    for code, size in _SIZES:
        if value < 1 << (8 * size):
            return bytes((kind | code,)) + value.to_bytes(size, "big")
    raise ValueError(f"{value} is more than 64 bits")


_SIZES = ((24, 1), (25, 2), (26, 4), (27, 8))
_ENCODED = _Encoded()
