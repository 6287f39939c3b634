"""Members of a request that only we may set.

They tell an engine to fetch KV cache or encoded media from an address in the request, or where to send its answer; one
crafted value kills a vLLM decode worker.
So a client's own are cut out of bodies that we parse (`strip`) and looked for in bodies that only pass (`Guard`).

Engines read JSON with Python's `json`: of two members with one name the last wins, names may be spelt with escapes,
and UTF-16 or UTF-32, told by the first bytes, is understood as well. The first two are dealt with here; other encodings
than UTF-8 are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from eluvix_extproc.errors import MalformedBody

# What to do with a member of that name: None removes it, a mapping looks into it.
_Rules = Mapping[str, "_Rules | None"]

_TRANSFER: _Rules = {"kv_transfer_params": None, "ec_transfer_params": None}
_RULES: _Rules = {
    **_TRANSFER,
    "bootstrap_host": None,
    "bootstrap_port": None,
    "bootstrap_room": None,
    "bootstrap_pair_key": None,
    "decode_tp_size": None,
    "kv_router_hint": None,
    "http_worker_ipc": None,
    "encoder_urls": None,
    "disagg_prefill_dp_rank": None,
    "data_parallel_rank": None,
    "routed_dp_rank": None,
    "vllm_xargs": _TRANSFER,
    "extra_args": _TRANSFER,
    "sampling_params": {"extra_args": _TRANSFER},
}
NAMES = frozenset(name for name, rule in _RULES.items() if rule is None)

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_WHITESPACE = b" \t\r\n"
# The Guard's needles: each name in plain spelling holds one of the first, in any other one of the second.
_PLAIN = (
    b'_transfer_params"', b'"bootstrap_', b'_dp_rank"', b'_parallel_rank"', b'_tp_size"', b'_router_hint"',
    b'_worker_ipc"', b'"encoder_urls"',
)  # fmt: skip
_ESCAPED = (b"\\u005", b"\\u006", b"\\u007")
# A string token of names' length whose opening quote is not escaped. An escaped quote stands in a text; a quote behind
# an escaped backslash closes one, and then no name can follow it.
_TOKEN = re.compile(
    rb'"(?<!\\")((?:[a-z_]|\\u00[567][0-9a-fA-F]){%d,%d}+)"[ \t\r\n]*+(:|\Z)'
    % (min(map(len, NAMES)), max(map(len, NAMES)))
)
_ESCAPE = re.compile(rb"\\u00([0-9a-fA-F]{2})")
_CARRY = 1 + len(rb"\u0000") * max(map(len, NAMES)) + len('""')
_BOM = b"\xef\xbb\xbf"
# Bounds on the work that a body made for it can cause; nothing that a client means comes near them.
_MAX_MEMBERS = 1_024
_MAX_CONFLICTS = 8


def strip(body: bytes) -> bytes | None:
    """The body without its reserved members, every other one byte for byte as it was; None when there are none.

    `body` is a whole one that `prompt.parse` accepted; where `Prompt.reserved` is False there is nothing to strip and
    no need to call. Costs one pass over the body (in C) when there is nothing. Raises MalformedBody for what is not
    a JSON object, and where it holds repeated members in a number that only an attack has.
    """
    start = len(_BOM) if body.startswith(_BOM) else 0
    start = _after_space(body, start)
    pruned = _pruned(body[start:] if start else body, _RULES)
    return None if pruned is None else body[:start] + pruned


class Guard:
    """Looks for reserved names in the bytes of a body that is not parsed, chunk by chunk.

    Says nothing of a compressed body, which engines do not read either. A body in UTF-16 or UTF-32 counts as one that
    holds a name. What is looked for is a whole string token, in any spelling, with a colon
    behind it: a text that merely mentions a name has its quotes escaped. Other than in `strip` the depth does not
    matter, so that a member of that name anywhere (say, in a tool's schema) counts.
    """

    __slots__ = ("_carry", "_first", "_found", "_pending")

    def __init__(self) -> None:
        self._carry = b""
        self._first = 0          # 1 where the carry's first byte is only context
        self._found = False
        self._pending = False    # a whole reserved token was seen, and only whitespace since

    def feed(self, chunk: bytes) -> bool:
        """Whether a reserved name has appeared by the end of `chunk`; once True, always True."""
        if self._found or not chunk:
            return self._found
        if self._pending:
            rest = chunk.lstrip(_WHITESPACE)
            if rest:
                self._pending = False
                self._found = rest.startswith(b":")
        data = self._carry + chunk
        if (not self._first and _is_wide(data)) or (_suspicious(data) and self._search(data)):
            self._found = True
        if len(data) > _CARRY:
            data = data[-_CARRY:]
            self._first = 1
        self._carry = data
        return self._found

    def _search(self, data: bytes) -> bool:
        for match in _TOKEN.finditer(data, self._first):
            name = _ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), match[1])
            if name.decode() in NAMES:
                if match[2]:
                    return True
                self._pending = True
        return False


def _is_wide(beginning: bytes) -> bool:
    """Whether JSON that begins so is UTF-16 or UTF-32: the test of Python's `json.detect_encoding`."""
    return b"\0" in beginning[:2] or beginning.startswith((b"\xff\xfe", b"\xfe\xff"))


def _suspicious(data: bytes) -> bool:
    """Whether `data` can hold a reserved token; plain searches, which skip over text faster than a regex."""
    if b"_" in data and any(ending in data for ending in _PLAIN):
        return True
    return b"\\u00" in data and any(escape in data for escape in _ESCAPED)


class _Member(NamedTuple):
    """Offsets into the object's text: of the name's opening quote, of the value, and behind the value."""

    name: str
    start: int
    value: int
    end: int


def _pruned(text: bytes, rules: _Rules) -> bytes | None:
    """`text` (which begins with `{`) without what `rules` remove; None when that is nothing."""
    try:
        values = _OBJECT.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBody(f"The body is not valid JSON: {error}.") from None
    if not any(name in values for name in rules):
        return None
    pieces: list[bytes] = []
    changed = False
    before = b""
    behind = -1     # the end of the member before
    for member in _members(text, values):
        if behind < 0:
            before = text[: member.start]
        separator = text[behind : member.start] if pieces else b""
        behind = member.end
        value = text[member.value : member.end]
        if member.name in rules:
            rule = rules[member.name]
            inner = _pruned(value, rule) if rule is not None and value.startswith(b"{") else None
            changed = changed or rule is None or inner is not None
            if rule is None:
                continue
            value = inner or value
        pieces.append(separator + text[member.start : member.value] + value)
    return b"".join((before, *pieces, text[behind:])) if changed else None


def _members(text: bytes, values: Mapping[str, Raw]) -> Iterator[_Member]:
    """Every member of an object in order, repeated ones as well.

    `values` are what a decoder found by name, so that a value's end is known without reading it. Where the text at
    hand is another one, the name is repeated with different values and this one is decoded for itself.
    """
    at = _after_space(text, 1)
    conflicts = 0
    for _ in range(_MAX_MEMBERS):
        token = _STRING.match(text, at)
        if token is None:
            raise MalformedBody("The body is not valid JSON.")
        name = msgspec.json.decode(token[0], type=str)
        value = _after_space(text, _after_space(text, token.end()) + 1)
        raw = bytes(values[name])
        end = _after_space(text, value + len(raw))
        if not text.startswith(raw, value) or text[end : end + 1] not in (b",", b"}"):
            conflicts += 1
            if conflicts > _MAX_CONFLICTS:
                raise MalformedBody(f"'{name}' is given more than once.", name)
            raw = _value_at(text, value, values)
            end = _after_space(text, value + len(raw))
        yield _Member(name, at, value, value + len(raw))
        if text[end : end + 1] == b"}":
            return
        at = _after_space(text, end + 1)
    raise MalformedBody("The body has too many members.")


def _value_at(text: bytes, at: int, values: Mapping[str, Raw]) -> bytes:
    """The one JSON value that begins there, in an object whose names are those of `values`."""
    name = "x"
    while name in values:
        name += "x"
    return bytes(_OBJECT.decode(b'{"%b":%b' % (name.encode(), text[at:]))[name])


def _after_space(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
