"""SGLang's own `/generate`, for one prompt or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eluvix_extproc.sim.answers import Output, Usage, event
from eluvix_extproc.sim.formats.base import Plain, word_ids


class Texts(Plain):
    """Each event has the whole text so far, and the tokens of its own sequence."""

    def __init__(self, ident: str, sequences: int) -> None:
        self._ident = ident
        self._texts = [""] * sequences

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        return self._event(choice, word, None, usage)

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        return self._event(choice, word, reason, usage)

    def usage(self, usage: Usage) -> bytes:
        return b""

    def failure(self, body: Mapping[str, Any]) -> bytes:
        return event(refusal(body))

    def whole(self, outputs: list[Output], usage: Usage) -> object:
        """A list exactly where there are several sequences."""
        many = [self._answer(at, said.words, said.reason, said.usage) for at, said in enumerate(outputs)]
        return many if len(many) > 1 else many[0]

    def _event(self, choice: int, word: str, reason: str | None, usage: Usage | None) -> bytes:
        assert usage is not None, "each event says how much there is"
        self._texts[choice] += word
        several = {"index": choice} if len(self._texts) > 1 else {}
        return event({**self._answer(choice, self._texts[choice], reason, usage), **several})

    def _answer(self, choice: int, words: str, reason: str | None, usage: Usage) -> dict[str, Any]:
        ending = {"length": {"type": "length", "length": usage.completion}, "stop": {"type": "stop", "matched": 2}}
        meta = {
            "id": f"{self._ident}_{choice}" if len(self._texts) > 1 else self._ident,
            "finish_reason": None if reason is None else ending[reason],
            "prompt_tokens": usage.prompt,
            "weight_version": "default",
            "total_retractions": 0,
            "completion_tokens": usage.completion,
            "cached_tokens": usage.cached,
        }
        return {"text": words, "output_ids": word_ids(words), "meta_info": meta}


def refusal(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message and no more."""
    return {"error": {"message": body["error"]["message"]}}
