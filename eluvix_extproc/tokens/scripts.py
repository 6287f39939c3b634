"""How much of a text is of which script: what tokens per byte depend on, at a cost that long texts do not raise.

UTF-8's lead byte tells the Unicode block, so that one `bytes.translate`, which also drops all continuation bytes,
leaves one class letter for each character. Byte-pair vocabularies differ by an order of magnitude between these
classes, and little within one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

SAMPLED_CHARS = 16_384
_PIECES = 32
_PIECE_CHARS = SAMPLED_CHARS // _PIECES

_LETTER, _DIGIT, _SPACE, _MARK = b"ldsp"
# First lead byte of each class beyond ASCII, from the Unicode block it begins with.
_LEADS = (
    (0xC2, "e"),  # Latin with accents, IPA
    (0xCC, "g"),  # Greek, Cyrillic
    (0xD4, "h"),  # Armenian, Hebrew, Arabic, Syriac
    (0xE0, "i"),  # Indic scripts, Thai, Lao, Tibetan, Burmese, Georgian, Ethiopic, Khmer
    (0xE2, "q"),  # typographic marks, arrows, mathematics, box drawing
    (0xE3, "k"),  # kana, CJK punctuation
    (0xE4, "c"),  # Han
    (0xEA, "o"),  # Hangul
    (0xEE, "q"),  # private use
    (0xEF, "c"),  # full-width and compatibility forms
    (0xF0, "m"),  # emoji, rare scripts
)
_CONTINUATION = bytes(range(0x80, 0xC0))


class Scripts(NamedTuple):
    """Characters of a text by class, in fractions where it was sampled. `words` and `alphabet_words` are beginnings of
    words, `mark_pairs` pairs of neighbouring ASCII marks. `utf8_bytes` is the size of all of it."""

    letters: float = 0.0
    words: float = 0.0
    digits: float = 0.0
    marks: float = 0.0
    mark_pairs: float = 0.0
    spaces: float = 0.0
    accented: float = 0.0
    greek_cyrillic: float = 0.0
    semitic: float = 0.0
    alphabet_words: float = 0.0
    indic: float = 0.0
    kana: float = 0.0
    han: float = 0.0
    hangul: float = 0.0
    symbols: float = 0.0
    emoji: float = 0.0
    utf8_bytes: float = 0.0


def measure(texts: Sequence[str]) -> Scripts:
    """Up to SAMPLED_CHARS characters are counted one by one; beyond, evenly spaced pieces stand for the whole."""
    ends = list(accumulate(map(len, texts)))
    total = ends[-1] if ends else 0
    if not total:
        return Scripts()
    sample = "".join(texts) if total <= SAMPLED_CHARS else _sample(texts, ends)
    scale = total / len(sample)
    data = sample.encode("utf-8", "surrogatepass")
    kinds = data.translate(_CLASSES, _CONTINUATION)
    count = kinds.count
    return Scripts(
        letters=count(_LETTER) * scale,
        words=(count(b"sl") + count(b"pl") + kinds.startswith(b"l")) * scale,
        digits=count(_DIGIT) * scale,
        marks=count(_MARK) * scale,
        mark_pairs=count(b"pp") * scale,
        spaces=count(_SPACE) * scale,
        utf8_bytes=len(data) * scale,
        **({} if len(data) == len(sample) else _beyond_ascii(kinds, scale)),
    )


def _beyond_ascii(kinds: bytes, scale: float) -> dict[str, float]:
    count = kinds.count
    return {
        "accented": count(b"e") * scale,
        "greek_cyrillic": count(b"g") * scale,
        "semitic": count(b"h") * scale,
        "alphabet_words": (count(b"sg") + count(b"sh")) * scale,
        "indic": count(b"i") * scale,
        "kana": count(b"k") * scale,
        "han": count(b"c") * scale,
        "hangul": count(b"o") * scale,
        "symbols": count(b"q") * scale,
        "emoji": count(b"m") * scale,
    }


def _sample(texts: Sequence[str], ends: Sequence[int]) -> str:
    step = ends[-1] / _PIECES
    pieces: list[str] = []
    for number in range(_PIECES):
        at, wanted = int(number * step), _PIECE_CHARS
        index = bisect_right(ends, at)
        while wanted and index < len(texts):
            text = texts[index]
            start = max(0, at - ends[index] + len(text))
            piece = text[start : start + wanted]
            pieces.append(piece)
            wanted -= len(piece)
            index += 1
    return "".join(pieces)


def _classes() -> bytes:
    table = bytearray(256)
    for code in range(0x80):
        char = chr(code)
        table[code] = (
            _LETTER if char.isalpha() else _DIGIT if char.isdigit() else _SPACE if code <= 0x20 else _MARK
        )
    for lead, kind in _LEADS:
        table[lead:] = kind.encode() * (256 - lead)
    return bytes(table)


_CLASSES = _classes()
