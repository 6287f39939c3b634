"""From a request's body to the engine and back, whatever its format."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson
from aiohttp import web

from eluvix_extproc.core.prompt import Api
from eluvix_extproc.sim import formats, intake, refusals, text
from eluvix_extproc.sim.answers import Output, Shapes, Usage
from eluvix_extproc.sim.engine import Overloaded, Sequence
from eluvix_extproc.sim.faults import Fault
from eluvix_extproc.sim.intake import Ask
from eluvix_extproc.sim.journal import Received
from eluvix_extproc.sim.loop import EngineLoop
from eluvix_extproc.sim.options import WorkerOptions
from eluvix_extproc.sim.refusals import Refusal
from eluvix_extproc.sim.stream import Answering, Cut, EventWriter, reset

_BODY_PIECE = 64 * 1024


@dataclass(slots=True, eq=False)
class _Choice:
    """One sequence with its text; `sent` counts the tokens that the client was given."""

    sequence: Sequence
    words: list[str]
    sent: int = 0


class Generation:
    """One request at the engine. `run` answers it, whatever way it ends, and leaves nothing of it in the engine."""

    def __init__(
        self,
        request: web.Request,
        received: Received,
        ask: Ask,
        fault: Fault,
        options: WorkerOptions,
        loop: EngineLoop,
    ) -> None:
        self._request = request
        self._received = received
        self._ask = ask
        self._fault = fault
        self._options = options
        self._loop = loop
        self._progress = asyncio.Event()
        self._choices = [
            self._choice(packed, ask.max_tokens, index)
            for packed in ask.prompts
            for index in range(ask.choices_per_prompt)
        ]
        self._shapes = formats.shapes(
            ask, request.headers.get("x-request-id") or secrets.token_hex(8), int(datetime.now(UTC).timestamp())
        )

    async def run(self) -> web.StreamResponse:
        sequences = [choice.sequence for choice in self._choices]
        try:
            self._loop.submit(sequences)
        except Overloaded:
            if self._ask.stream and self._options.overload_mode == "stream":
                return await self._stream_refusal(refusals.overloaded())
            raise refusals.overloaded() from None
        try:
            return await (self._stream() if self._ask.stream else self._whole())
        finally:
            for sequence in sequences:
                self._loop.engine.abort(sequence)

    def _choice(self, packed: bytes, max_tokens: int | None, index: int) -> _Choice:
        prompt_tokens = text.count(packed)
        room = self._options.max_model_len - prompt_tokens
        tokens = max_tokens or min(self._options.output_tokens, room)
        words = text.answer(packed, tokens, index, ends=max_tokens is None)
        hashes = text.block_hashes(packed, words, self._options.block_size, self._ask.salt)
        reason = "stop" if max_tokens is None else "length"
        return _Choice(Sequence(prompt_tokens, tokens, hashes, self._progress.set, reason), words)

    async def _whole(self) -> web.StreamResponse:
        while not all(choice.sequence.finished for choice in self._choices):
            self._progress.clear()
            await self._progress.wait()
        await asyncio.sleep(self._fault.stall_first_token_ms / 1000)
        body = self._whole_body("")
        if self._fault.body_bytes > len(body):
            body = self._whole_body("x" * (self._fault.body_bytes - len(body)))
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        response = Answering(self._received, headers)
        await response.prepare(self._request)
        if self._fault.reset == "after_headers":
            reset(self._request)
            return response
        if self._fault.reset == "mid_stream":
            await response.write(body[: len(body) // 2])
            reset(self._request)
            return response
        for start in range(0, len(body), _BODY_PIECE):
            await response.write(body[start : start + _BODY_PIECE])
        await response.write_eof()
        return response

    def _whole_body(self, padding: str) -> bytes:
        outputs = [
            Output("".join(c.words) + padding, c.sequence.finish_reason, self._usage_of(c, len(c.words)))
            for c in self._choices
        ]
        return orjson.dumps(self._shapes.whole(outputs, self._usage(self._choices)))

    async def _stream(self) -> web.StreamResponse:
        response = await self._open_stream()
        writer = EventWriter(self._request, response, self._fault)
        shapes = self._shapes
        try:
            if self._fault.reset == "after_headers":
                reset(self._request)
                return response
            await self._prelude(writer, shapes)
            if not await self._relay(writer, shapes):
                return response
            if self._ask.include_usage and (ending := shapes.usage(self._usage(self._choices))):
                await writer.write(ending)
            if shapes.done:
                await writer.write(shapes.done)
            await writer.flush()
            await response.write_eof()
        except Cut:
            pass
        return response

    async def _prelude(self, writer: EventWriter, shapes: Shapes) -> None:
        """What comes before any token exists, of the format's own or by a fault, and the stall."""
        fault = self._fault
        if prelude := shapes.prelude():
            await writer.write(prelude)
        if fault.early_role:
            for index, choice in enumerate(self._choices):
                if opening := shapes.opening(index, self._running_usage(choice)):
                    await writer.write(opening)
        for _ in range(fault.prelude_pings):
            await writer.write(b": ping\n\n")
        for _ in range(fault.empty_deltas):
            await writer.write(shapes.token(0, "", self._running_usage(self._choices[0])))
        if fault.stall_first_token_ms:
            await writer.flush()
            await asyncio.sleep(fault.stall_first_token_ms / 1000)

    async def _relay(self, writer: EventWriter, shapes: Shapes) -> bool:
        """Writes tokens as they come; False when a fault ended the stream with an error event."""
        written = 0
        while any(choice.sent < len(choice.words) for choice in self._choices):
            self._progress.clear()
            for index, choice in enumerate(self._choices):
                while choice.sent < choice.sequence.generated:
                    if written == self._fault.error_event_after:
                        await self._end_with_error(writer)
                        return False
                    await self._write_token(writer, shapes, index, choice)
                    written += 1
            if any(choice.sent < len(choice.words) for choice in self._choices):
                await self._progress.wait()
        return True

    async def _write_token(self, writer: EventWriter, shapes: Shapes, index: int, choice: _Choice) -> None:
        opens = choice.sent == 0 and not self._fault.early_role
        if opens and (opening := shapes.opening(index, self._running_usage(choice))):
            await writer.write(opening)
        word = choice.words[choice.sent]
        choice.sent += 1
        usage = self._running_usage(choice)
        if choice.sent < len(choice.words):
            await writer.write(shapes.token(index, word, usage))
        elif ending := shapes.last_token(index, word, choice.sequence.finish_reason, usage):
            await writer.write(ending)

    async def _end_with_error(self, writer: EventWriter) -> None:
        body = self._fault.body if isinstance(self._fault.body, dict) else refusals.overloaded().body
        await writer.write(self._shapes.failure(body))
        if self._shapes.done:
            await writer.write(self._shapes.done)
        await writer.flush()

    async def _stream_refusal(self, refusal: Refusal) -> web.StreamResponse:
        response = await self._open_stream()
        await response.write(self._shapes.failure(refusal.body) + self._shapes.done)
        await response.write_eof()
        return response

    async def _open_stream(self) -> web.StreamResponse:
        """Sends the headers at once, long before the first token."""
        response = Answering(self._received, {"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(self._request)
        return response

    def _running_usage(self, choice: _Choice) -> Usage | None:
        return self._usage_of(choice, choice.sent) if self._ask.continuous_usage else None

    @staticmethod
    def _usage_of(choice: _Choice, completion: int) -> Usage:
        sequence = choice.sequence
        return Usage(sequence.prompt_tokens, completion, sequence.cached_tokens, sequence.created_cache_tokens)

    def _usage(self, choices: list[_Choice]) -> Usage:
        """As vLLM sums it: each prompt once, every choice's output."""
        prompts = choices[:: self._ask.choices_per_prompt]
        return Usage(
            prompt=sum(c.sequence.prompt_tokens for c in prompts),
            completion=sum(len(c.words) for c in choices),
            cached=sum(c.sequence.cached_tokens for c in prompts),
            created=sum(c.sequence.created_cache_tokens for c in prompts),
        )


async def generate(
    request: web.Request,
    received: Received,
    body: bytes,
    *,
    api: Api,
    fault: Fault,
    options: WorkerOptions,
    loop: EngineLoop,
) -> web.StreamResponse:
    """Answers one request; raises Refusal for what the engine refuses before it sends headers."""
    ask = intake.read(body, request.headers.get("content-type", ""), api, options)
    if api is Api.ANTHROPIC_COUNT_TOKENS:
        return web.json_response({"input_tokens": sum(map(text.count, ask.prompts))})
    return await Generation(request, received, ask, fault, options, loop).run()
