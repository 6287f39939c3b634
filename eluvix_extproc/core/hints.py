"""What tells where a conversation belongs besides the bytes that an engine caches.

Agents write lines at the head of their system prompt that change from request to request (a date, a billing or session
line): to an engine each is a new prompt, to the people it is one conversation. And many clients name the conversation
themselves. Neither says anything of what a worker's KV cache holds, so neither is ever counted as cached tokens: they
decide only who is asked when nothing known does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from eluvix_extproc.core.prompt import Message, Prompt

HEAD_LINES = 16
# Of a longer line the pattern sees this much: what bounds a pattern's work on a text that is made for it.
LINE_CHARS = 512
_VERSION = b"eluvix-session-1"
# A longer name is no name; it is cut, so that what it costs is bounded.
_LONGEST_VALUE = 1_024
_CANONICAL = msgspec.json.Encoder(order="sorted")
_LENGTH_AND_KIND = 9
_HEAD_ROLES = frozenset({"system", "developer"})


class Session:
    """Finds the client's own name for a conversation: the first of `headers`, then of `fields`, that it sent.

    `headers` are in lower case; `fields` are among `prompt_cache_key` and `user`. Names are compared as a whole
    (equality, never by prefix) and only within one source, so that a header's and a field's value never meet.
    """

    def __init__(self, headers: Sequence[str], fields: Sequence[str]) -> None:
        self._headers = tuple(headers)
        self._fields = tuple(fields)

    def digest(self, headers: Mapping[str, str], prompt: Prompt | None, *, model: str, salt: str = "") -> bytes:
        """32 bytes, or b"" when the client named none; differs by model and by `cache_salt`."""
        for source in self._headers:
            if value := headers.get(source):
                return _digest(source, value, model, salt)
        if prompt is not None:
            for source in self._fields:
                if value := prompt.cache_key if source == "prompt_cache_key" else prompt.user:
                    return _digest(source, value, model, salt)
        return b""


def hint_key(digest: bytes) -> int:
    """The index key of a digest that stands for a conversation and for no cached tokens."""
    return xxh3_64_intdigest(b"hint" + digest)


class VolatileLines:
    """Takes the lines that match any of `patterns` out of the first HEAD_LINES lines of a system prompt."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises re.error."""
        self._patterns = tuple(re.compile(pattern) for pattern in patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def steady(self, message: Message) -> bytes:
        """`message.canonical` without them: for the prefix key alone. The very same object where there are none."""
        if message.role not in _HEAD_ROLES:
            return message.canonical
        canonical = message.canonical
        size = int.from_bytes(canonical[-_LENGTH_AND_KIND:-1], "little")
        content, rest, kind = canonical[:size], canonical[size:-_LENGTH_AND_KIND], canonical[-1:]
        if kind == b"s":
            text = content.decode("utf-8", "surrogatepass")
            steady, _ = self._without(text, HEAD_LINES)
            if steady == text:
                return canonical
            content = steady.encode("utf-8", "surrogatepass")
        elif kind == b"j":
            parts = msgspec.json.decode(content)
            if not self._clean_parts(parts):
                return canonical
            content = _CANONICAL.encode(parts)
        return b"".join((content, rest, len(content).to_bytes(8, "little"), kind))

    def _clean_parts(self, parts: Any) -> bool:
        """Whether anything was taken out of the texts of a list of parts."""
        room = HEAD_LINES
        changed = False
        for part in parts if isinstance(parts, list) else ():
            text = part.get("text") if isinstance(part, dict) else None
            if not isinstance(text, str):
                continue
            steady, room = self._without(text, room)
            if steady != text:
                part["text"] = steady
                changed = True
            if room <= 0:
                break
        return changed

    def _without(self, text: str, room: int) -> tuple[str, int]:
        """The text without the volatile ones of its first `room` lines, and how many of those it had not used up."""
        kept: list[str] = []
        at = 0
        while room > 0 and at < len(text):
            end = text.find("\n", at) + 1 or len(text)
            line = text[at : min(end, at + LINE_CHARS)].rstrip("\r\n")
            if not any(pattern.search(line) for pattern in self._patterns):
                kept.append(text[at:end])
            at = end
            room -= 1
        kept.append(text[at:])
        return "".join(kept), room


def _digest(source: str, value: str, model: str, salt: str) -> bytes:
    digest = sha256(_VERSION)
    for field in (model, salt, source, value[:_LONGEST_VALUE]):
        data = field.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()
