"""Requests as bytes, made before the clock runs. Every text is fresh, so that no memo hides work it would not save."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from eluvix_extproc.bench.stub import HEADER

MODEL = "bench"
PATH = "/v1/chat/completions"
_HISTORY_SHARE = 0.9   # of a follow-up turn's bytes, what the turn before had already
_WORDS = """
the of and to in is that for it as was with be by on not this are at from or have an they which one you had
all we can has there been if more when will would who so no out up said what its about than into them could
other then time only new some these two may first any my now such like our over man me even most made after
also did many before must through years where much your way well down should because long each just state
those people how too little good world make very year still see own work men day get here between both life
being under three never know same last another while us off might great go come since against right came
take used himself few house American use place during high without again home around small however found
thought went say part once general upon school every don't does got united left number course war until
always away something fact water less public put think almost hand enough far took head yet better system
set told nothing night end why find going look later point next program city business give group toward
young let days room side social present several order second
""".split()   # noqa: SIM905 - a list of 300 literals is no easier to read


def request(body: bytes, answer: str, path: str = PATH) -> bytes:
    """HTTP/1.1 bytes; `answer` tells the stub worker what to answer."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nuser-agent: bench\r\naccept: */*\r\n"
        f"content-type: application/json\r\n{HEADER}: {answer}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


@dataclass(frozen=True, slots=True)
class Batch:
    """`measured[n]` is the follow-up turn of `warm[n]` where there are such; else `warm` is empty."""

    warm: list[bytes]
    measured: list[bytes]


def fresh(seed: int, size: int, count: int, answer: str) -> Batch:
    """`count` chats of about `size` bytes each, of which no two share text."""
    return Batch([], [request(body, answer) for body in fresh_bodies(seed, size, count, answer)])


def fresh_bodies(seed: int, size: int, count: int, answer: str) -> list[bytes]:
    rng = random.Random(seed)
    return [chat([text(rng, size - 200)], answer) for _ in range(count)]


def follow_ups(seed: int, size: int, count: int, answer: str) -> Batch:
    """`count` conversations: a turn that warms what remembers turns, and the next one of about `size` bytes."""
    rng = random.Random(seed)
    warm, measured = [], []
    for _ in range(count):
        history = [text(rng, int(size * _HISTORY_SHARE))]
        turn = [text(rng, 300), text(rng, max(100, size - int(size * _HISTORY_SHARE) - 600))]
        warm.append(request(chat(history, "whole"), "whole"))
        measured.append(request(chat(history + turn, answer), answer))
    return Batch(warm, measured)


def chat(texts: list[str], answer: str = "whole") -> bytes:
    """A body whose messages are a user's and an assistant's by turns, behind a short system prompt."""
    messages = [{"role": "system", "content": "Answer briefly."}]
    messages += [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)]
    fields = {"model": MODEL, "messages": messages, "max_tokens": 64, "stream": answer != "whole"}
    return json.dumps(fields, separators=(",", ":")).encode()


def text(rng: random.Random, size: int) -> str:
    text = " ".join(rng.choices(_WORDS, k=size // 4 + 8))
    return text[:size]
