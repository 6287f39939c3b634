"""Embeddings and scores. The numbers follow from the text that the simulated model would say."""

from __future__ import annotations

from typing import Any

from eluvix_extproc.sim.answers import Output, Usage
from eluvix_extproc.sim.formats.base import Unstreamed


class Embeddings(Unstreamed):
    """`/v1/embeddings`: a vector for each input."""

    def __init__(self, ident: str, created: int, model: str) -> None:
        self._head = {"id": f"embd-{ident}", "object": "list", "created": created, "model": model}

    def whole(self, outputs: list[Output], usage: Usage) -> object:
        data = [
            {"index": at, "object": "embedding", "embedding": _numbers(output)} for at, output in enumerate(outputs)
        ]
        rest = {"completion_tokens": 0, "prompt_tokens_details": None}
        return {**self._head, "data": data, "usage": {**_counts(usage), **rest}}


class Ranks(Unstreamed):
    """`/rerank`: the documents, best first."""

    def __init__(self, ident: str, model: str, documents: tuple[object, ...]) -> None:
        self._head = {"id": f"rerank-{ident}", "model": model}
        self._documents = documents

    def whole(self, outputs: list[Output], usage: Usage) -> object:
        scores = [sum(_numbers(output)) for output in outputs]
        best = sorted(range(len(scores)), key=lambda at: -scores[at])
        results = [{"index": at, "document": self._document(at), "relevance_score": scores[at]} for at in best]
        return {**self._head, "usage": _counts(usage), "results": results}

    def _document(self, at: int) -> object:
        document = self._documents[at]
        return {"text": document, "multi_modal": None} if isinstance(document, str) else document


def _numbers(output: Output) -> list[float]:
    return [byte / 255 for byte in output.words.encode()]


def _counts(usage: Usage) -> dict[str, Any]:
    return {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
