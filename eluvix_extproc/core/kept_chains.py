"""The chains of conversations as they were at their latest turn, so that the next one hashes only what is new.

Nothing here defines anything: with and without it a chain has the same bytes (`core/prefix.py`). A chain is kept under
the keys of its messages, which are secret, and used only where the token ids that it covers are the same as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import PrefixPoint
from eluvix_extproc.core.recall import beginning, longest

MAX_BYTES = 16 << 20
# A rendering ends with the opened answer, and what the next turn has there may differ: a block or two before it do not.
STEPS_BACK = 3
_POINT_BYTES = 130
_NUMBER_BYTES = 36
_KEPT_BYTES = 600

_by_tokens = attrgetter("tokens")


@dataclass(frozen=True, slots=True)
class Blocks:
    """A chain of token blocks. `ends` are its last few, longest first: how many blocks, what their ids hash to, and
    the digest behind them; only where the chain is to be kept."""

    points: tuple[PrefixPoint, ...] = ()
    ends: tuple[tuple[int, bytes, bytes], ...] = ()

    def shared(self, ids: bytes, block_bytes: int) -> tuple[int, bytes]:
        """With how many of these blocks `ids` begin, as far as that is known, and the digest behind them."""
        view = memoryview(ids)
        for count, hashed, digest in self.ends:
            size = count * block_bytes
            if size <= len(ids) and xxh3_128_digest(view[:size]) == hashed:
                return count, digest
        return 0, b""


@dataclass(frozen=True, slots=True)
class Kept:
    """The chain of some first messages, all of them whole. `tokens` are their ends, `points` theirs without the
    blocks', `merged` all points; `root` is b"" while further messages would change it."""

    digest: bytes
    tokens: tuple[int, ...]
    root: bytes
    root_length: int
    points: tuple[PrefixPoint, ...]
    blocks: Blocks
    merged: tuple[PrefixPoint, ...]

    def size(self) -> int:
        return _KEPT_BYTES + _POINT_BYTES * len(self.merged) + _NUMBER_BYTES * len(self.tokens)


_memo: Memo[Kept] = Memo(MAX_BYTES)


def kind(seed: bytes, has_ids: bool) -> int:
    """Chains of one seed; long messages have parts only where there are no token ids."""
    return xxh3_64_intdigest(seed, has_ids)


def find(keys: bytes, kind: int, tokens: tuple[int, ...]) -> Kept | None:
    """The chain of the longest known beginning, if its messages end where `tokens` says. `keys` are joined_keys."""
    found = longest(_memo, keys, kind)
    if found is None or tokens[: found[0]] != found[1].tokens:
        return None
    return found[1]


def keep(keys: bytes, kind: int, chain: Kept, replaced: Kept | None) -> None:
    if replaced is not None and len(replaced.tokens) < len(chain.tokens):
        _memo.drop(beginning(keys, len(replaced.tokens), kind))
    _memo.put(beginning(keys, len(chain.tokens), kind), chain, chain.size())


def with_ends(points: Sequence[PrefixPoint], digests: Sequence[bytes], ids: bytes, block_bytes: int) -> Blocks:
    """Blocks that can be kept; `digests` are those behind the last blocks, in order."""
    view = memoryview(ids)
    state = xxh3_128()
    ends = []
    fed = 0
    for count, digest in enumerate(digests, len(points) - len(digests) + 1):
        state.update(view[fed : count * block_bytes])
        fed = count * block_bytes
        ends.append((count, state.digest(), digest))
    return Blocks(tuple(points), tuple(reversed(ends)))


def merge(
    kept: Kept | None, points: tuple[PrefixPoint, ...], blocks: tuple[PrefixPoint, ...]
) -> tuple[PrefixPoint, ...]:
    """All points by growing length; those that `kept` has already are not sorted again."""
    if not blocks:
        return points
    if kept is not None and kept.merged and blocks[: len(kept.blocks.points)] == kept.blocks.points:
        new = sorted((*points[len(kept.points) :], *blocks[len(kept.blocks.points) :]), key=_by_tokens)
        if not new or new[0].tokens > kept.merged[-1].tokens:
            return (*kept.merged, *new)
    return tuple(sorted((*points, *blocks), key=_by_tokens))
