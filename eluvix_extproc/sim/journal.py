"""What a worker received lately, so that a test can prove what arrived, byte for byte, in bounded memory."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

_KEPT_REQUESTS = 1000
_KEPT_BODY_BYTES = 64 * 1024
_KEPT_BODIES_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Received:
    """One request. `body` is there while it is small and recent; `complete` once all of it has arrived."""

    number: int
    method: str
    path: str
    headers: list[tuple[str, str]]
    body_bytes: int = 0
    complete: bool = False
    body: bytearray | None = field(default_factory=bytearray)
    outcome: str = "open"
    answer_bytes: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)
    _answer: Any = field(default_factory=hashlib.sha256)

    def feed(self, data: bytes) -> None:
        self.body_bytes += len(data)
        self._digest.update(data)
        if self.body is not None:
            if self.body_bytes > _KEPT_BODY_BYTES:
                self.body = None
            else:
                self.body += data

    def answered(self, data: bytes | bytearray | memoryview) -> None:
        self.answer_bytes += len(data)
        self._answer.update(data)

    def sha256(self) -> str:
        return str(self._digest.hexdigest())

    def answer_sha256(self) -> str:
        return str(self._answer.hexdigest())


class Journal:
    """The last requests, oldest first. Their bodies together stay under a bound: the oldest are let go first."""

    def __init__(self) -> None:
        self._received: deque[Received] = deque(maxlen=_KEPT_REQUESTS)
        self._with_bodies: deque[Received] = deque()
        self._held_bytes = 0
        self._total = 0

    def open(self, method: str, path: str, headers: list[tuple[str, str]]) -> Received:
        self._total += 1
        received = Received(self._total, method, path, headers)
        self._received.append(received)
        return received

    def body_complete(self, received: Received) -> None:
        received.complete = True
        if received.body:
            self._with_bodies.append(received)
            self._held_bytes += len(received.body)
        while self._held_bytes > _KEPT_BODIES_BYTES:
            oldest = self._with_bodies.popleft()
            self._held_bytes -= len(oldest.body or b"")
            oldest.body = None

    def clear(self) -> None:
        self._received.clear()
        self._with_bodies.clear()
        self._held_bytes = 0

    def listing(self, *, bodies: bool) -> dict[str, object]:
        return {"total": self._total, "requests": [_shown(r, bodies) for r in self._received]}


def _shown(received: Received, bodies: bool) -> dict[str, object]:
    shown: dict[str, object] = {
        "number": received.number,
        "method": received.method,
        "path": received.path,
        "headers": [list(pair) for pair in received.headers],
        "body_bytes": received.body_bytes,
        "body_sha256": received.sha256(),
        "body_complete": received.complete,
        "outcome": received.outcome,
        "answer_bytes": received.answer_bytes,
        "answer_sha256": received.answer_sha256(),
    }
    if bodies:
        # Latin-1 maps every byte to one character, so that any body comes through JSON unharmed.
        shown["body_latin1"] = received.body.decode("latin-1") if received.body is not None else None
    return shown
