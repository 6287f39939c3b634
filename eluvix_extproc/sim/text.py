"""A stand-in for a tokenizer and a model: every token is exactly four bytes, and the answer follows from the prompt.

Because output tokens are written and read by the same rule, a follow-up turn that repeats the answer continues the very
token sequence which the worker has cached, as with a real chat template.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec
import xxhash

TOKEN_BYTES = 4
# What a chat template puts around a message: three tokens before the content, one after it.
_END = b"<|e>"
_OTHER_PART_TOKENS = 64
# Three letters and a space each: one token.
_WORDS = (
    "the and for you are but not all can had her was one our out day get has him his how man new now old see two way "
    "who boy did its let put say she too use sun run sea sky air ice oak elm fox owl bee ant cat dog cow hen pig rat "
    "bat map pen cup box "
)
_VOCABULARY = [_WORDS[i : i + TOKEN_BYTES] for i in range(0, len(_WORDS), TOKEN_BYTES)]



def chat_tokens(messages: Iterable[Mapping[str, object]], tools: object = None) -> bytes:
    """The prompt of a chat request as packed tokens, its last ones opening the assistant's turn."""
    packed = bytearray()
    if tools:
        packed += _message("tools", _canonical(tools))
    for message in messages:
        extra = {k: v for k, v in message.items() if k not in ("role", "content") and v is not None}
        body = _content(message.get("content")) + (_canonical(extra) if extra else b"")
        packed += _message(str(message.get("role", "")), body)
    return bytes(packed + _header("assistant"))


def text_tokens(text: str) -> bytes:
    """Plain text as packed tokens: UTF-8 bytes / 4, rounded up."""
    return _pad(text.encode())


def id_tokens(ids: Iterable[int]) -> bytes:
    """Token ids as packed tokens, one each."""
    return b"".join((i & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "little") for i in ids)


def ids(packed: bytes) -> list[int]:
    """The tokens as numbers, as `id_tokens` takes them."""
    return [int.from_bytes(packed[at : at + TOKEN_BYTES], "little") for at in range(0, len(packed), TOKEN_BYTES)]


def count(packed: bytes) -> int:
    return len(packed) // TOKEN_BYTES


def answer(packed_prompt: bytes, tokens: int, choice: int, ends: bool) -> list[str]:
    """The output, a string per token. With `ends` the last one is the end token, which has no text.

    A shorter answer to the same prompt is a prefix of a longer one.
    """
    seed = hashlib.sha256(packed_prompt + b"%d" % choice).digest()
    words = [_VOCABULARY[b % len(_VOCABULARY)] for b in hashlib.shake_128(seed).digest(tokens)]
    if ends:
        words[-1] = ""
    return words


def block_hashes(packed_prompt: bytes, output: list[str], block_size: int, salt: str = "") -> tuple[int, ...]:
    """xxh3 chain over the full blocks of prompt and output; `salt` keeps tenants apart."""
    packed = packed_prompt + b"".join(word.encode() or _END for word in output)
    step = block_size * TOKEN_BYTES
    parent = xxhash.xxh3_64_intdigest(salt.encode())
    chain = []
    for start in range(0, len(packed) - step + 1, step):
        parent = xxhash.xxh3_64_intdigest(packed[start : start + step], seed=parent)
        chain.append(parent)
    return tuple(chain)


def _message(role: str, body: bytes) -> bytes:
    return _header(role) + _pad(body) + _END


def _header(role: str) -> bytes:
    return b"<|s>" + hashlib.sha256(role.encode()).digest()[:TOKEN_BYTES] + b"\n\0\0\0"


def _content(content: object) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, list):
        return b"".join(_part(part) for part in content)
    return _canonical(content)


def _part(part: object) -> bytes:
    words = part.get("text") if isinstance(part, dict) else None
    if isinstance(words, str):
        return words.encode()
    # An image or a clip: a fixed number of tokens that depend on its contents.
    return hashlib.shake_128(_canonical(part)).digest(_OTHER_PART_TOKENS * TOKEN_BYTES)


def _canonical(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _pad(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % TOKEN_BYTES)
