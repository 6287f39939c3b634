"""A client of the demo: sends OpenAI requests, keeps the instant of every token, and believes nothing but the wire."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from eluvix_extproc.core.sse import SseSplitter

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "brew")
_WITH_USAGE = {"stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class Answer:
    """`token_at` are monotonic seconds of each token's arrival in a streamed answer. `whole` means that it ended as
    it should: a JSON object, or a stream with its `[DONE]`. `body` is the JSON of an answer that was not streamed."""

    status: int
    headers: Mapping[str, str]
    text: str
    usage: Mapping[str, Any]
    body: Mapping[str, Any]
    sent_at: float
    token_at: tuple[float, ...] = ()
    whole: bool = True

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between tokens, as this client saw them."""
        return [after - before for before, after in zip(self.token_at, self.token_at[1:], strict=False)]

    @property
    def cached_tokens(self) -> int | None:
        details = self.usage.get("prompt_tokens_details") or {}
        return details.get("cached_tokens")


def prose(tokens: int, start: str) -> str:
    """Text that begins with `start` and that a worker counts as about so many tokens (4 bytes each)."""
    words, size, n = [start], len(start), len(start)
    while size < tokens * 4:
        n = (n * 7 + 3) % 1009
        words.append(_WORDS[n % len(_WORDS)])
        size += len(words[-1]) + 1
    return " ".join(words)


@dataclass(slots=True)
class Client:
    """Speaks to one gateway at `url`."""

    url: str
    session: aiohttp.ClientSession
    model: str = "sim"

    async def get(self, path: str) -> Answer:
        async with self.session.get(self.url + path) as response:
            return await _whole(response, time.monotonic())

    async def chat(
        self,
        messages: list[dict[str, str]] | str,
        *,
        headers: Mapping[str, str] | None = None,
        on_first_token: Callable[[], None] = lambda: None,
        **fields: Any,
    ) -> Answer:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return await self._post(CHAT, {"messages": messages, **fields}, headers or {}, on_first_token)

    async def complete(self, prompt: str | list[int], **fields: Any) -> Answer:
        return await self._post(COMPLETIONS, {"prompt": prompt, **fields}, {}, lambda: None)

    async def _post(
        self, path: str, fields: dict[str, Any], headers: Mapping[str, str], on_first_token: Callable[[], None]
    ) -> Answer:
        body = {"model": self.model, **(_WITH_USAGE if fields.get("stream") else {}), **fields}
        sent = {"content-type": "application/json", **headers}
        began = time.monotonic()
        async with self.session.post(self.url + path, data=json.dumps(body).encode(), headers=sent) as response:
            if response.content_type == "text/event-stream":
                return await _stream(response, began, on_first_token)
            return await _whole(response, began)


async def _whole(response: aiohttp.ClientResponse, began: float) -> Answer:
    raw = await response.read()
    try:
        body = json.loads(raw)
        whole = isinstance(body, dict)
    except ValueError:
        whole = False
    found = body if whole else {}
    text = "".join(_text(choice) for choice in found.get("choices", ()))
    return Answer(response.status, response.headers, text, found.get("usage") or {}, found, began, (), whole)


async def _stream(
    response: aiohttp.ClientResponse, began: float, on_first_token: Callable[[], None]
) -> Answer:
    splitter, texts, token_at = SseSplitter(), [], []
    usage: Mapping[str, Any] = {}
    done = False
    async for chunk in response.content.iter_any():
        now = time.monotonic()
        for event in splitter.feed(chunk):
            if event == b"[DONE]":
                done = True
                continue
            parsed = json.loads(event)
            usage = parsed.get("usage") or usage
            text = "".join(_text(choice) for choice in parsed.get("choices", ()))
            if text:
                texts.append(text)
                token_at.append(now)
                if len(token_at) == 1:
                    on_first_token()
    return Answer(response.status, response.headers, "".join(texts), usage, {}, began, tuple(token_at), done)


def _text(choice: Mapping[str, Any]) -> str:
    """Of a chat or a completion, streamed or not."""
    part = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or part.get("content") or "")
