"""Text to ids, piece by piece through a memo: what was encoded before is not encoded again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.tokens.counter import pack_ids
from eluvix_extproc.tokens.encoder import Encode


@dataclass(frozen=True, slots=True)
class Encoded:
    """`ids` are packed u32. `cut_starts[i]` is the index of the i-th cut token in the text, `cut_tokens[i]` the number
    of tokens before it; the text up to `clean_end` (just behind the last cut) has the ids `ids[:clean_ids]` whatever
    follows."""

    ids: bytes
    cut_starts: tuple[int, ...]
    cut_tokens: tuple[int, ...]
    clean_end: int
    clean_ids: int


class PieceEncoder:
    """Encodes with the memo on exactly as without it: cuts are sound (see cuts.py), keys are 128-bit seeded hashes."""

    def __init__(self, encode: Encode, cuts: Sequence[str], memo: Memo[bytes] | None, seed: int) -> None:
        self._encode = encode
        self._memo = memo
        self._seed = seed
        self._cut_ids = dict(zip(cuts, encode(list(cuts)), strict=True)) if cuts else {}
        # Longest first: one cut may begin another.
        longest_first = sorted(map(re.escape, cuts), key=len, reverse=True)
        self._cut_pattern = re.compile("|".join(longest_first)) if cuts else None

    def encode(self, text: str, start: int = 0) -> Encoded:
        """The ids of text[start:], where `start` is 0 or just behind a cut. Raises UnicodeEncodeError."""
        if self._cut_pattern is None:
            return Encoded(self._through_memo([text[start:]])[0], (), (), 0, 0)
        stretches: list[str] = []
        found: list[str] = []
        starts: list[int] = []
        end = start
        for match in self._cut_pattern.finditer(text, start):
            stretches.append(text[end : match.start()])
            found.append(match.group())
            starts.append(match.start())
            end = match.end()
        stretches.append(text[end:])

        encoded = self._through_memo(stretches)
        parts: list[bytes] = []
        tokens: list[int] = []
        size = 0
        for stretch, cut in zip(encoded, found, strict=False):
            cut_ids = self._cut_ids[cut]
            tokens.append((size + len(stretch)) // 4)
            size += len(stretch) + len(cut_ids)
            parts += (stretch, cut_ids)
        parts.append(encoded[-1])
        return Encoded(b"".join(parts), tuple(starts), tuple(tokens), end, size)

    def _through_memo(self, stretches: list[str]) -> list[bytes]:
        if self._memo is None:
            return self._encode_all(stretches)
        data = [stretch.encode() for stretch in stretches]
        keys = [xxhash.xxh3_128_intdigest(piece, self._seed) for piece in data]
        known = self._memo.get_many(keys)
        missing = {key: stretch for key, stretch, ids in zip(keys, stretches, known, strict=True) if ids is None}
        fresh = dict(zip(missing, self._encode_all(list(missing.values())), strict=True))
        self._memo.put_many((key, ids, len(ids)) for key, ids in fresh.items())
        return [fresh[key] if ids is None else ids for key, ids in zip(keys, known, strict=True)]

    def _encode_all(self, stretches: list[str]) -> list[bytes]:
        encoded = iter(self._encode([stretch for stretch in stretches if stretch]))
        return [next(encoded) if stretch else pack_ids(()) for stretch in stretches]
