"""What an engine publishes of its KV cache, received with pyzmq."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

POLL_MS = 50


@dataclass(frozen=True)
class Block:
    """A block as the engine announced it: `hash` and `parent` are its integers, `extra` its extra keys."""

    hash: int
    parent: int | None
    tokens: tuple[int, ...]
    extra: Any


class Subscriber:
    """Receives in a thread from when its `with` is entered; what was published before is not seen."""

    def __init__(self, endpoint: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.set_hwm(0)    # the default drops messages of a burst
        self._socket.subscribe(b"")
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._blocks: list[Block] = []
        self._sequences: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def blocks(self) -> list[Block]:
        """All that were stored so far, in order."""
        with self._lock:
            return list(self._blocks)

    def sequences(self) -> list[int]:
        with self._lock:
            return list(self._sequences)

    def __enter__(self) -> Self:
        self._socket.connect(self._endpoint)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close(linger=0)

    def _receive(self) -> None:
        while not self._stop.is_set():
            if not self._socket.poll(POLL_MS):
                continue
            _topic, sequence, payload = self._socket.recv_multipart()
            _at, events, *_rank = msgspec.msgpack.decode(payload)
            blocks = [block for event in events if event["type"] == "BlockStored" for block in _blocks(event)]
            with self._lock:
                self._sequences.append(int.from_bytes(sequence, "big"))
                self._blocks += blocks


def _blocks(event: dict[str, Any]) -> list[Block]:
    size, tokens = event["block_size"], event["token_ids"]
    hashes = event["block_hashes"]
    extras = event.get("extra_keys") or [None] * len(hashes)
    parents = [event["parent_block_hash"], *hashes]
    return [
        Block(digest, parents[number], tuple(tokens[number * size : (number + 1) * size]), extras[number])
        for number, digest in enumerate(hashes)
    ]
