"""Messages: what is hashed of one, and what of it is text, whatever format it came in.

A message's canonical bytes are `content ‖ rest ‖ len(content) as u64 little-endian ‖ kind`. `content` is the text as
UTF-8 (kind `s`), the canonical JSON of a content of any other type (kind `j`), or nothing (kind `n`); `rest` is the
canonical JSON of the other members, nulls left out. Read from its end this has one meaning only. The length stands
last so that a message of which only a head was read has the beginning of the whole one's bytes (`core/prefix.py`
relies on it); for the same reason media stay in by value and not by a digest of theirs. A message that was not decoded
(see `allowance.py`) has no content, and as rest its JSON as sent (kind `r`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from eluvix_extproc.core.prompt import Message
from eluvix_extproc.core.recall import Heads
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.allowance import Allowance

# Part types whose own text is tokenised; every other type is media. A part without a type is told by its members.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "tool_reference": "name",
}
PLAIN_ROLES = {role: b'{"role":"%b"}' % role.encode() for role in ("system", "developer", "user", "assistant")}
HEADS = Heads(32 << 20, secrets.randbits(64))
_ANY = msgspec.json.Decoder()
_ENCODE = msgspec.json.Encoder().encode

# Reads one message that is more than a role and a text: (value, its JSON as sent) -> the messages it becomes.
Reader = Callable[[Any, bytes], list[Message]]


class _Outline(msgspec.Struct):
    role: str | None = None


_OUTLINE = msgspec.json.Decoder(_Outline)


def read_all(
    raws: Sequence[Raw],
    read: Reader,
    left: Allowance | None = None,
    where: str = "messages[{}]",
    plain: Container[str] = PLAIN_ROLES,
) -> tuple[Message, ...]:
    """The messages of a list of them. `where` names the one at fault in the API's own terms; those of a role in `plain`
    with a text are for the engine what they are. Raises MalformedBody."""
    decode = _ANY.decode
    messages: list[Message] = []
    index = -1
    try:
        for raw in raws:
            index += 1
            if left is not None and not left.covers(bytes(raw)):
                messages.append(undecoded(bytes(raw)))
                continue
            value = decode(raw)
            # Nearly every message is a role and a text; all else about it takes longer.
            if type(value) is dict and len(value) == 2:
                role, content = value.get("role"), value.get("content")
                if type(content) is str and type(role) is str and role in plain:
                    messages.append(plain_message(role, content, bytes(raw)))
                    continue
            messages.extend(read(value, bytes(raw)))
    except MalformedBody as error:
        name = f"{where.format(index)}{error.param or ''}"
        raise MalformedBody(f"Invalid value for '{name}': {error.message}", name) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        name = where.format(index)
        raise MalformedBody(f"Invalid value for '{name}': {error}.", name) from None
    except RecursionError:
        name = where.format(index)
        raise MalformedBody(f"'{name}' is nested too deeply.", name) from None
    return tuple(messages)


def whole(value: Any, raw: bytes) -> list[Message]:
    """Reads a message of `/v1/chat/completions`. Raises MalformedBody."""
    return [_chat_message(role_of(value), value, raw)]


def cut(value: Any, raw: bytes) -> list[Message]:
    """The same where only a head of the body was read, so that the last message may lack anything."""
    return [_chat_message(role_of(value, complete=False), value, raw)]


def plain_message(role: str, content: str, raw: bytes) -> Message:
    """One of a role and a text, and a role among PLAIN_ROLES."""
    return Message(role, joined(content.encode(), PLAIN_ROLES[role], b"s"), content, raw, 0, HEADS.key(raw))


def converted(role: str, canonical: bytes, chat: dict[str, Any]) -> Message:
    """A message that the engine sees as `chat`, in the form of `/v1/chat/completions`."""
    text, media = text_of(chat)
    raw = _ENCODE(chat)
    return Message(role, canonical, text, raw, media, HEADS.key(canonical + raw))


def role_of(value: Any, complete: bool = True) -> str:
    """A message's role, "" where it was cut off. Raises MalformedBody for what is no message."""
    if type(value) is not dict:
        raise MalformedBody("expected an object.")
    role = value.get("role")
    if type(role) is str:
        return role
    if complete:
        raise MalformedBody("expected a string.", ".role")
    return ""


def canonical_message(content: Any, rest: dict[str, Any]) -> bytes:
    """What is hashed of a message with this content and these other members."""
    members = fields.canonical(rest, "messages")
    if content is None:
        return joined(b"", members, b"n")
    if type(content) is str:
        return joined(content.encode(), members, b"s")
    return joined(fields.canonical(content, "messages"), members, b"j")


def joined(content: bytes, rest: bytes, kind: bytes) -> bytes:
    return b"".join((content, rest, len(content).to_bytes(8, "little"), kind))


def text_of(message: dict[str, Any]) -> tuple[str, int]:
    """All that is tokenised of a chat message, and how many media parts it has."""
    texts: list[str] = []
    media = _read_content(message.get("content"), texts)
    for name in ("reasoning", "reasoning_content"):
        if isinstance(message.get(name), str):
            texts.append(message[name])
            break    # two names of one thing
    if isinstance(message.get("name"), str):
        texts.append(message["name"])
    _read_calls(message.get("tool_calls"), texts)
    return "\n".join(texts), media


def one_text(parts: Any) -> Any:
    """A list of one text part as that text: engines make no difference, and clients send now this, now that."""
    if type(parts) is list and len(parts) == 1 and type(parts[0]) is dict and len(parts[0]) == 2:
        text = parts[0].get("text")
        if type(text) is str and parts[0].get("type") in ("text", "input_text"):
            return text
    return parts


def _chat_message(role: str, value: dict[str, Any], raw: bytes) -> Message:
    content = value.get("content")
    canonical = canonical_message(content, {k: v for k, v in value.items() if v is not None and k != "content"})
    text, media = text_of(value)
    return Message(role, canonical, text, raw, media, HEADS.key(raw))


def undecoded(raw: bytes) -> Message:
    """Of a message that holds more values than any client means. Without `raw` it is never rendered."""
    try:
        role = _OUTLINE.decode(raw).role
    except msgspec.ValidationError:
        raise MalformedBody("expected an object with a role.") from None
    if role is None:
        raise MalformedBody("expected a string.", ".role")
    return Message(role, joined(b"", raw, b"r"), raw.decode("utf-8", "replace"), b"")


def _read_content(content: Any, texts: list[str]) -> int:
    """Collects the texts of a content of any shape; the number of media parts in it."""
    if isinstance(content, str):
        texts.append(content)
    media = 0
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            member = _TEXT_PARTS.get(str(part.get("type") or ("text" if "text" in part else "media")))
            if member is None:
                media += 1
            elif isinstance(part.get(member), str):
                texts.append(part[member])
    return media


def _read_calls(calls: Any, texts: list[str]) -> None:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        for member in (function.get("name"), function.get("arguments")):
            if isinstance(member, str):
                texts.append(member)
            elif member is not None:
                texts.append(fields.canonical(member, "messages").decode())
