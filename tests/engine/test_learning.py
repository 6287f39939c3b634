"""Without a tokenizer the estimate learns from what the engine reports, and says that it is one."""

from __future__ import annotations

import random
from statistics import median

import pytest

from tests.engine.gateway import Gateway, told, usage

LEARNED_FROM = 50
ASKED = 20
WORDS = {
    "english": "the quick brown foxes jump over lazy dogs while nobody watches them from afar and it rains",
    "chinese": "今天 天气 很 好 我们 一起 去 公园 散步 然后 回家 吃饭 看书 写字 休息 。",
    "russian": "сегодня хорошая погода и мы пойдём гулять в парк потом вернёмся домой ужинать",
    "python": "def f(x): return x[0] + 1 if x else None # note\n for i in range(10): print(i, end='')\n",
}


@pytest.mark.parametrize("kind", WORDS)
def test_the_median_error_is_small_after_fifty_requests_of_a_kind(turns: Gateway, kind: str) -> None:
    rng = random.Random(kind)
    errors: list[float] = []
    for number in range(LEARNED_FROM + ASKED):
        text = " ".join(rng.choices(WORDS[kind].split(" "), k=rng.randrange(30, 400)))
        fields = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        answer = turns.ask("/v1/chat/completions", {"model": turns.guessed, **fields})
        guess = told(answer)
        assert guess.source == "estimate"
        if number >= LEARNED_FROM:
            errors.append(abs(guess.tokens - usage(answer)["prompt"]) / usage(answer)["prompt"])
    assert median(errors) < 0.05
