"""The demo's first part: one request of each kind through the gateway, and what must hold of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from eluvix_extproc.sim.demo_client import Answer, Client, prose
from eluvix_extproc.sim.demo_table import Row, row

HEAVY_TOKENS = 6000
_SYSTEM_TOKENS = 1200
_QUESTIONS = (
    "Why is the sky blue?", "And why are sunsets red?", "Is that so on Mars as well?", "Sum it up in one sentence.",
)  # fmt: skip
# What every answer of a worker bears; a streamed one has its measured TTFT as well. The other timing figures take a
# mean of the worker's, and while that is not known they are absent.
_ALWAYS = (
    "x-eluvix-tokens", "x-eluvix-pd-role", "x-eluvix-kv-prefix-hash", "x-eluvix-kv-cache-kb", "x-eluvix-timing",
)  # fmt: skip

Show = Callable[[Row], None]


@dataclass(slots=True)
class Traffic:
    """Sends the requests in order, shows a row for each, and remembers the rows."""

    client: Client
    workers: Mapping[str, str]
    show: Show
    rows: list[Row] = field(default_factory=list)

    async def run(self, turns: int) -> None:
        """`turns` is the length of the conversation, at least 2."""
        client = self.client
        short = "Name three uses of a paper clip."
        self._served("chat, light, streamed", await client.chat(short, stream=True, max_tokens=32), "decode")
        self._served("chat, light", await client.chat(short, max_tokens=16), "decode")
        self._served(
            "completion, streamed", await client.complete("Once upon a time", stream=True, max_tokens=24), "decode"
        )
        ids = [n % 50_000 for n in range(500)]
        answer = await client.complete(ids, max_tokens=8)
        self._served(
            "completion of token ids", answer, "decode", _unless(_says(answer, "x-eluvix-tokens", "500;source=exact"),
                                                                "500 token ids were not counted as such")
        )  # fmt: skip
        heavy = prose(HEAVY_TOKENS, "Summarise this report.")
        self._served("chat, heavy, streamed", await client.chat(heavy, stream=True, max_tokens=16), "prefill")
        again = await client.chat(heavy, max_tokens=16)
        self._served("the same, not streamed", again, "prefill", _unless(
            (again.cached_tokens or 0) > HEAVY_TOKENS // 2, "the prefill worker did not find it in its KV cache"
        ))  # fmt: skip
        await self._conversation(_QUESTIONS[:turns])
        forged = {"x-eluvix-cluster": "llm-prefill", "x-gateway-destination-endpoint": "192.0.2.1:1"}
        self._served("chat naming its cluster", await client.chat(short, headers=forged, max_tokens=8), "decode")
        self._passed("GET /v1/models", await client.get("/v1/models"))
        self._refused("chat, unknown model", await client.chat(short, model="no-such-model"))

    async def _conversation(self, questions: Sequence[str]) -> None:
        messages = [{"role": "system", "content": prose(_SYSTEM_TOKENS, "You are a patient teacher.")}]
        first: Answer | None = None
        cached = -1
        for number, question in enumerate(questions, 1):
            messages.append({"role": "user", "content": question})
            answer = await self.client.chat(messages, stream=number % 2 == 0, max_tokens=24)
            messages.append({"role": "assistant", "content": answer.text})
            problems = []
            if first is not None:
                problems += _unless(_same(first, answer, "x-eluvix-kv-prefix-hash"), "the prefix hash has changed")
                problems += _unless(_same(first, answer, "x-sim-worker"), "another worker was chosen")
                problems += _unless((answer.cached_tokens or 0) > cached, "no more was cached than for the turn before")
            first, cached = first or answer, answer.cached_tokens or 0
            streamed = ", streamed" if number % 2 == 0 else ""
            self._served(f"conversation {number}{streamed}", answer, "decode", problems)

    def _served(self, name: str, answer: Answer, role: str, problems: Sequence[str] = ()) -> None:
        """An answer of a worker: complete, with every header, from the expected role."""
        wanted = (*_ALWAYS, "x-eluvix-ttft-ms") if answer.token_at else _ALWAYS
        missing = [header for header in wanted if header not in answer.headers]
        self._note(name, answer, [
            *_unless(answer.status == 200, f"status {answer.status}, not 200: {answer.body or answer.text}"),
            *_unless(answer.whole and bool(answer.text), "the answer is not whole"),
            *_unless(not missing, f"without {', '.join(missing)}"),
            *_unless(_says(answer, "x-eluvix-pd-role", role), f"not by the role {role}"),
            *_unless(_says(answer, "x-sim-role", role), f"not by a worker of the pool {role}"),
            *problems,
        ])  # fmt: skip

    def _passed(self, name: str, answer: Answer) -> None:
        ours = [header for header in answer.headers if header.lower().startswith("x-eluvix-")]
        self._note(name, answer, [
            *_unless(answer.status == 200 and answer.whole, f"status {answer.status}, not a whole answer"),
            *_unless(not ours, f"passed through, yet with {', '.join(ours)}"),
        ])  # fmt: skip

    def _refused(self, name: str, answer: Answer) -> None:
        code = (answer.body.get("error") or {}).get("code")
        self._note(name, answer, [
            *_unless(answer.status == 404, f"status {answer.status}, not 404"),
            *_unless(code == "model_not_found", f"error code {code!r}, not 'model_not_found'"),
            *_unless("x-sim-worker" not in answer.headers, "a worker was asked"),
        ])  # fmt: skip

    def _note(self, name: str, answer: Answer, problems: Sequence[str]) -> None:
        self.rows.append(row(name, answer, self.workers, tuple(problems)))
        self.show(self.rows[-1])


def _says(answer: Answer, header: str, value: str) -> bool:
    return answer.headers.get(header) == value


def _same(one: Answer, other: Answer, header: str) -> bool:
    return one.headers.get(header) == other.headers.get(header)


def _unless(holds: bool, problem: str) -> list[str]:
    return [] if holds else [problem]
