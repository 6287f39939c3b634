"""Why a worker is not the first of its pool, in words, by the rules of `core/switchyard/affinity.py`."""

from __future__ import annotations

from eluvix_extproc.core.switchyard.affinity import Score


def behind(first: Score, other: Score) -> str:
    """`other` is any of the workers that come after `first`."""
    if other.window is not None and other.load > other.window:
        return "its load is beyond its window"
    if _near(first) and not _near(other):
        return "what it holds is too short to follow" if other.held else "it holds nothing of the prompt"
    if _near(first) and other.held < first.held:
        return "it holds less of the prompt"
    if other.load > first.load:
        return "it is busier"
    return "equal, and later in the hash order of the conversation"


def _near(score: Score) -> bool:
    """Whether the worker is preferred for what it holds, rather than for its load."""
    return score.window is not None and score.load <= score.window
