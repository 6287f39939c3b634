"""The head of a JSON object that was not read to its end, made readable.

A fixed number of passes over the bytes, nearly all of them in C: a head of 1 MiB of text costs a few milliseconds, and
one made to be costly (nothing but brackets) some tens.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from eluvix_extproc.errors import MalformedBody

# An escape sequence without its end, or the first half of a surrogate pair without its second.
_CUT_ESCAPE = re.compile(
    rb"\\(?:u[0-9a-fA-F]{0,3})?|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?"
)
_LONGEST_CUT = len(rb"\ud83d\ude0")
_MAX_DEPTH = 1_000    # where the decoder gives up too
_WHITESPACE = b" \t\r\n"
_SCALAR = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-."
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_PAIRS = {ord("{"): b"}", ord("["): b"]"}
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


def readable(head: bytes, keep: str, *instead: str) -> bytes:
    """A whole JSON object out of the head of one.

    What the cut fell into is completed when it belongs to the member `keep` (a text then ends where the head does), or
    to one of `instead` while there is no `keep`, and dropped otherwise, for half a model name or half the tools are
    worse than none. Raises MalformedBody when it is not the head of a JSON object.
    """
    closed, cut = _closed(head.removeprefix(b"\xef\xbb\xbf"))
    if not cut:
        return closed
    try:
        members = _MEMBERS.decode(closed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedBody(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise MalformedBody("The body is nested too deeply.") from None
    last = next(reversed(members), keep)
    if last == keep or (last in instead and keep not in members):
        return closed
    members.popitem()
    return b"{%b}" % b",".join(b"%b:%b" % (msgspec.json.encode(name), bytes(raw)) for name, raw in members.items())


def _closed(head: bytes) -> tuple[bytes, bool]:
    """The head with everything that is open in it closed, and whether the cut fell into its last member's value."""
    # Pairs of backslashes first, from the left: what still stands before a quote then escapes it. Lengths stay.
    parts = head.replace(rb"\\", b"__").replace(rb"\"", b"__").split(b'"')
    shape = b'"'.join(parts[::2])        # every string is one quote: small, and free of escapes
    in_string = len(parts) % 2 == 0
    opened = len(head) - len(parts[-1]) - 1
    text = head[:opened] if in_string else head
    closers = _closers(shape)
    if in_string and not _is_key(shape.rstrip(_WHITESPACE), closers):
        return text + _cut_string(head[opened:]) + b'"' + closers, True
    text, shape = _tidy(text), _tidy(shape)
    if text.endswith(b":"):
        return text + b"null" + closers, True
    if text.endswith(b'"') and _is_key(shape[:-1].rstrip(_WHITESPACE), closers):
        return text + b":null" + closers, True
    return text + closers, len(closers) > 1


def _closers(shape: bytes) -> bytes:
    """What closes the brackets that are open at the end."""
    brackets = shape.translate(None, _NOT_BRACKETS)
    for _ in range(4):    # most of them are pairs side by side
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    stack: list[bytes] = []
    for bracket in brackets:
        closer = _PAIRS.get(bracket)
        if closer is not None:
            stack.append(closer)
            if len(stack) > _MAX_DEPTH:
                raise MalformedBody("The body is nested too deeply.")
        elif not stack or stack.pop()[0] != bracket:
            raise MalformedBody("The body is not valid JSON: unbalanced brackets.")
    return b"".join(reversed(stack))


def _is_key(before: bytes, closers: bytes) -> bool:
    """Whether a string that stands after `before` names a member."""
    return closers.startswith(b"}") and before.endswith((b"{", b","))


def _tidy(text: bytes) -> bytes:
    """Without the scalar that may go on behind the cut, and without a comma that nothing follows."""
    return text.rstrip(_SCALAR).rstrip(_WHITESPACE).removesuffix(b",").rstrip(_WHITESPACE)


def _cut_string(token: bytes) -> bytes:
    """An unfinished string (from its opening quote on) up to its last whole character."""
    at = token.find(b"\\", -_LONGEST_CUT)
    while at >= 0:
        before = token[:at]
        escaped = (len(before) - len(before.rstrip(b"\\"))) % 2
        if not escaped and _CUT_ESCAPE.fullmatch(token, at):
            return before
        at = token.find(b"\\", at + 1)
    for back in range(1, min(4, len(token)) + 1):
        byte = token[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return token[:-back] if back < length else token
    return token
