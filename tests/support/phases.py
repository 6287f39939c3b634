"""One request at each point of its life, all at the same time, so that one fault meets them all.

Each is proven to be where its name says before the next one starts; `release` lets those that wait for the test go on.
"""

from __future__ import annotations

import hashlib
import re
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import yaml

from tests.support.client import Answer, chat, post
from tests.support.processes import wait_until
from tests.support.stack import MODEL, Stack

TINY = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny" / "tokenizer.json"
PHASES = ("uploading", "flowing", "waiting", "held", "streaming", "deciding")
BUFFERED_PHASES = tuple(phase for phase in PHASES if phase != "flowing")   # Envoy has all of a body before it asks
# Renders at once but for one conversation, which it walks through as often as that has characters.
_TEMPLATE = """{%- for message in messages -%}
{%- if 'never decided' in message.content -%}
{%- for a in message.content -%}{%- for b in message.content -%}{%- endfor -%}{%- endfor -%}
{%- endif -%}
{{- message.content -}}
{%- endfor -%}"""
_BIG = 450_000   # bytes of a body that is counted in a thread
_AT_ONCE = {"status": 200, "body": {"choices": [{"message": "a long prompt takes the simulated engine long"}]}}
_FAULTS: dict[str, dict[str, Any]] = {
    "flowing": _AT_ONCE,
    "waiting": {"delay_headers_ms": 4000},
    "held": {"early_role": True, "stall_first_token_ms": 4000},
    "deciding": _AT_ONCE,
}
_STOPS_BEFORE = {"uploading": 1, "flowing": 2}   # the piece, of three, that waits for the release
_STREAM_TOKENS = 700   # 3.5 s at the stacks' 5 ms a token


def slow_to_decide(folder: Path) -> dict[str, Any]:
    """Configuration in which the phase `deciding` does not end, and streams are watched to their end."""
    template = folder / "template.jinja"
    template.write_text(_TEMPLATE)
    tokenizer = {"file": str(TINY), "chatTemplate": str(template)}
    return {
        "server": {"decisionTimeout": "25s"},
        "timing": {"itl": "always"},
        "models": [{"name": MODEL, "architecture": "llama-3.1-8b", "tokenizer": tokenizer}],
    }


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[str], str]:
    """An `edit` for Stack: `change` is given the rendered ext_proc filter."""

    def edit(bootstrap: str) -> str:
        tree = yaml.safe_load(bootstrap)
        for listener in tree["static_resources"]["listeners"]:
            for chain in listener["filter_chains"]:
                for network in chain["filters"]:
                    for http in network["typed_config"].get("http_filters", ()):
                        if http["name"] == "envoy.filters.http.ext_proc":
                            change(http["typed_config"])
        return yaml.safe_dump(tree)

    return edit


@dataclass
class InPhase:
    """A request under way, what it sends, and in `answer` what came of it."""

    phase: str
    http2: bool
    mark: str
    body: bytes
    answer: Future[Answer] = field(default_factory=Future)
    direct: Future[bytes] = field(default_factory=Future)   # what a worker answers when nobody stands between
    reached: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return f"{self.phase}/{'h2' if self.http2 else 'h1'}"


class Phases:
    """The requests, by phase and protocol; `with` it, bring about the fault, `release`, then look at each."""

    def __init__(self, stack: Stack, mark: str, phases: tuple[str, ...] = PHASES) -> None:
        self._stack = stack
        self._release = threading.Event()
        self._threads = ThreadPoolExecutor(4 * len(phases))
        self.requests = [
            _request(phase, http2, f"{mark}-{phase}-{'h2' if http2 else 'h1'}")
            for phase in phases for http2 in (False, True)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        try:
            for request in self.requests:
                sent, upstream = self._messages(), self._upstream_bytes()
                request.answer = self._threads.submit(self._send, request)
                wait_until(lambda r=request, s=sent, u=upstream: self._there(r, s, u), f"{request.name} to be reached")  # type: ignore[misc]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release.set()
        self._threads.shutdown()

    def release(self) -> None:
        """Let the uploads go on, decided or not."""
        self._release.set()
        for request in self.requests:
            request.direct = self._threads.submit(_ask, self._stack.decode[0].address, request)

    def under_way(self) -> list[str]:
        """The names of those that have no whole answer yet."""
        return [request.name for request in self.requests if not request.answer.done()]

    def _send(self, request: InPhase) -> Answer:
        headers = {"x-test": request.mark}
        if request.phase in _FAULTS:
            headers["x-sim-fault"] = msgspec.json.encode(_FAULTS[request.phase]).decode()

        def before_chunk(number: int) -> None:
            if number == _STOPS_BEFORE.get(request.phase):
                request.reached.set()
                self._release.wait(60)

        def took(answer: Answer) -> bool:
            if len(answer.chunks) >= 5:
                request.reached.set()
            return False

        third = len(request.body) // 3 + 1
        pieces = [request.body[n : n + third] for n in range(0, len(request.body), third)]
        body = pieces if request.phase in _STOPS_BEFORE else request.body
        return post(
            self._stack.port, body, headers=headers, http2=request.http2, before_chunk=before_chunk, stop_after=took,
            timeout=60,
        )  # fmt: skip

    def _there(self, request: InPhase, sent_before: int, upstream_before: int) -> bool:
        if request.answer.done():
            raise AssertionError(f"{request.name} was over before its time: {request.answer.result()}")
        match request.phase:
            case "uploading":   # BUFFERED sends no body before its end
                wanted = 1 if self._stack.profile == "buffered" else 2
                return request.reached.is_set() and self._messages() >= sent_before + wanted
            case "flowing":     # steered, and all that the client has sent so far has gone upstream
                return self._upstream_bytes() >= upstream_before + 2 * len(request.body) // 3
            case "deciding":
                return self._messages() >= sent_before + 2
            case "waiting":
                return bool(self._stack.received(request.mark))
            case "held":        # request headers and body, response headers and the role's chunk
                return self._messages() >= sent_before + 4
            case _:
                return request.reached.is_set()

    def _messages(self) -> int:
        """What Envoy has sent to the sidecar so far."""
        return sum(self._stack.envoy.stats(r"ext_proc\..*stream_msgs_sent$").values())

    def _upstream_bytes(self) -> int:
        """What Envoy has sent to workers so far."""
        return sum(self._stack.envoy.stats(r"cluster\.llm-.*upstream_cx_tx_bytes_total$").values())


def whole(answer: Answer, request: InPhase, stack: Stack) -> None:
    """The worker got every byte of the request, once; the client got every byte of the worker's answer."""
    received = stack.received_once(request.mark)
    assert received["body_complete"], request.name
    assert received["body_sha256"] == hashlib.sha256(request.body).hexdigest(), request.name
    assert (answer.status, answer.ended) == (200, True), f"{request.name}: {answer}"
    assert _told(answer.body) == _told(request.direct.result()), request.name


def _request(phase: str, http2: bool, mark: str) -> InPhase:
    tokens = _STREAM_TOKENS if phase == "streaming" else 8
    texts = {
        "uploading": "up and up " * 12_000,
        "flowing": "on and on " * 240_000,
        "deciding": "never decided " * (_BIG // 14),
    }
    body = chat(f"{mark} {texts.get(phase, 'short')}", stream=phase in ("held", "streaming"), max_tokens=tokens)
    return InPhase(phase, http2, mark, body)


def _ask(worker: str, request: InPhase) -> bytes:
    fault = {**_FAULTS.get(request.phase, {}), "delay_headers_ms": 0, "stall_first_token_ms": 0}
    headers = {"content-type": "application/json", "x-sim-fault": msgspec.json.encode(fault).decode()}
    url = f"http://{worker}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, request.body, headers), timeout=30) as answer:
        return bytes(answer.read())


def _told(body: bytes) -> bytes:
    """The bytes without the identity and the time of the request and what the cache held of it."""
    body = re.sub(rb'"id":"[^"]*"|"created":\d+|"usage":\{.*\}(?=,|\})', b"", body)
    return re.sub(rb'"cached_tokens":\d+|"created_cache_tokens":\d+', b"", body)
