"""Envoy and the sidecar before one real engine, and the two ways to ask it: through them, and directly."""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from eluvix_extproc.core.prompt import Api
from eluvix_extproc.prompt import parse
from eluvix_extproc.tokens.exact import from_file
from tests.engine.engine import BLOCK_SIZE, Engine
from tests.engine.relay import Relay
from tests.support.client import Answer, post
from tests.support.stack import Stack

_TOKENS = re.compile(r"(\d+);source=(exact|estimate)\Z")


@dataclass(frozen=True)
class Told:
    """What `x-eluvix-tokens` says."""

    tokens: int
    source: str


class Gateway:
    """`exact` is the model's name with its tokenizer known to the sidecar, `guessed` its name without."""

    def __init__(self, engine: Engine, relay: Relay | None = None) -> None:
        """With a `relay` it stands between Envoy and the engine."""
        self.engine = engine
        self.our_own = OurOwn(engine)
        self.exact, self.guessed = engine.served
        architecture = {"config": str(engine.model_folder / "config.json")}
        tokenizer = {"file": str(engine.model_folder / "tokenizer.json")}
        known: dict[str, Any] = {"architecture": architecture, "blockSize": BLOCK_SIZE}
        overrides = {
            "server": {"drainTimeout": "100ms"},
            "timing": {"itl": "always"},    # so that every stream is counted to its end
            "models": [
                {"name": self.exact, "tokenizer": tokenizer, "adapters": [engine.adapted], **known},
                {"name": self.guessed, "tokenizer": {"estimate": {}}, **known},
            ],
        }
        self.stack = Stack("hybrid", overrides, engines=[relay or engine])

    def __enter__(self) -> Self:
        self.stack.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.__exit__(kind, error, trace)

    def ask(self, path: str, fields: dict[str, Any], **how: Any) -> Answer:
        """Through Envoy and the sidecar; `fields` without a model ask for the exact one."""
        return post(self.stack.port, self._body(fields), path, **how)

    def ask_engine(self, path: str, fields: dict[str, Any], **how: Any) -> Answer:
        """Directly."""
        return post(self.engine.port, self._body(fields), path, **how)

    def exchange(self, answer: Answer) -> dict[str, Any]:
        """The sidecar's log line of the request that was answered so."""
        return self.stack.exchange_of(answer.headers["x-request-id"])

    def _body(self, fields: dict[str, Any]) -> bytes:
        return json.dumps({"model": self.exact, **fields}, ensure_ascii=False).encode("utf-8", "surrogatepass")


def told(answer: Answer) -> Told:
    """Of an answer of the engine that came through the gateway."""
    assert answer.status == 200, f"{answer.status} {answer.body[:1000]!r}"
    match = _TOKENS.match(answer.ours("tokens") or "")
    assert match, answer.headers
    return Told(int(match[1]), match[2])


def usage(answer: Answer) -> dict[str, int]:
    """What the engine says it has read, generated and had in its cache: `prompt`, `completion`, `cached`.

    Of a whole answer or of a stream that was asked to report it, in any API's terms. Anthropic's `input_tokens` leave
    out what was read from the cache or written to it.
    """
    told: dict[str, Any] = {}
    for event in events(answer):
        told |= _usage_of(event)
    details = told.get("prompt_tokens_details") or told.get("input_tokens_details") or {}
    read, written = told.get("cache_read_input_tokens") or 0, told.get("cache_creation_input_tokens") or 0
    prompt = told["prompt_tokens"] if "prompt_tokens" in told else told["input_tokens"] + read + written
    completion = told.get("completion_tokens", told.get("output_tokens", 0))
    return {"prompt": prompt, "completion": completion, "cached": details.get("cached_tokens") or read}


def events(answer: Answer) -> list[dict[str, Any]]:
    """The JSON of a streamed answer's events, or the one of a whole answer."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return [answer.json]
    data = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(text) for text in data if text != b"[DONE]"]


def _usage_of(event: dict[str, Any]) -> dict[str, Any]:
    """Where each API puts it: at the top, or in the response or the message that an event is about."""
    if "input_tokens" in event:     # count_tokens
        return {"input_tokens": event["input_tokens"]}
    for holder in (event, event.get("response"), event.get("message")):
        if isinstance(holder, dict) and holder.get("usage"):
            return dict(holder["usage"])
    return {}


class OurOwn:
    """Counts a request as the sidecar does, where more of a count is wanted than a header says."""

    def __init__(self, engine: Engine) -> None:
        self._counter = from_file(engine.model_folder / "tokenizer.json")

    def ids(self, api: Api, fields: dict[str, Any]) -> list[int]:
        """The token ids of the one prompt that a request of that format holds."""
        body = json.dumps({"model": "m", **fields}).encode()
        count = self._counter.count(parse(api, body, body_bytes=len(body), complete=True))
        assert count.exact
        return array("I", count.ids).tolist()
