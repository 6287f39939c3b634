"""SGLang's `/generate`: each event repeats the text so far (or adds to it), and `meta_info` counts the tokens."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from eluvix_extproc.core.answers.said import ABSENT, DONE, DONE_MARK, NOTHING, Said, Tokens, Usage, read, there


class _Meta(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None


class _Answer(msgspec.Struct):
    text: Raw = ABSENT
    output_ids: Raw = ABSENT
    meta_info: Raw = ABSENT
    error: Raw = ABSENT
    index: int | None = None


_decode = msgspec.json.Decoder(_Answer).decode
_decode_many = msgspec.json.Decoder(list[_Answer]).decode
_decode_meta = msgspec.json.Decoder(_Meta).decode


class Sglang:
    """For one answer: it remembers how far each sample has come. More samples than anyone asks for are taken as one."""

    def __init__(self) -> None:
        self._counted: dict[int, Usage] = {}

    def event(self, data: bytes) -> Said:
        if data == DONE_MARK:
            return DONE
        answer = read(_decode, data)
        if answer is None:
            return NOTHING
        if there(answer.error):
            return Said(failed=True)
        usage = _usage(answer.meta_info)
        if usage is None or usage.completion_tokens is None:
            return Said(there(answer.text) or there(answer.output_ids), usage)
        sample = (answer.index or 0) if len(self._counted) < _MOST_SAMPLES else 0
        before = self._counted.get(sample)
        self._counted[sample] = usage
        grown = usage.completion_tokens > (before.completion_tokens or 0 if before else 0)
        return Said(grown, _sum(list(self._counted.values())))

    def whole(self, body: bytes) -> Said:
        """One answer, or a list of them for several prompts or samples."""
        many = read(_decode_many, body) if body.lstrip()[:1] == b"[" else None
        if many is None:
            one = read(_decode, body)
            many = [] if one is None else [one]
        told = [usage for answer in many if (usage := _usage(answer.meta_info)) is not None]
        return Said(False, _sum(told), any(there(answer.error) for answer in many))


_MOST_SAMPLES = 128


def _usage(raw: Raw) -> Usage | None:
    told = read(_decode_meta, raw) if there(raw) else None
    return None if told is None else Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens)


def _sum(told: list[Usage]) -> Usage | None:
    if len(told) <= 1:
        return told[0] if told else None
    return Usage(
        sum(usage.prompt_tokens or 0 for usage in told),
        sum(usage.completion_tokens or 0 for usage in told),
        sum(usage.cached_tokens or 0 for usage in told),
    )
