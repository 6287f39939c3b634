"""SGLang's `/generate`: each event repeats the text so far (or adds to it), and `meta_info` counts the tokens.

Several prompts and several samples of one prompt are answered alike, each with its prompt's tokens: where there is more
than one, nothing tells how many prompts they are of, so only what was generated is known.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from eluvix_extproc.core.answers.said import ABSENT, DONE, DONE_MARK, NOTHING, Said, Tokens, Usage, read, there


class _Meta(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    finish_reason: Raw = ABSENT


class _Reason(msgspec.Struct):
    type: str = ""
    status_code: int | None = None


class _Answer(msgspec.Struct):
    text: Raw = ABSENT
    output_ids: Raw = ABSENT
    meta_info: Raw = ABSENT
    error: Raw = ABSENT
    index: Raw = ABSENT


_decode = msgspec.json.Decoder(_Answer).decode
_decode_many = msgspec.json.Decoder(list[_Answer]).decode
_decode_meta = msgspec.json.Decoder(_Meta).decode
_decode_reason = msgspec.json.Decoder(_Reason).decode

# Samples of one answer that are told apart, so that a worker that names ever new ones costs bounded memory.
MAX_SAMPLES = 1024
INDEX = 16          # bytes that name one


class Sglang:
    """For one answer: it remembers how far each sample has come. Samples beyond the bound count for nothing."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._generated = 0

    def event(self, data: bytes) -> Said:
        if data == DONE_MARK:
            return DONE
        answer = read(_decode, data)
        if answer is None:
            return NOTHING
        if there(answer.error):
            return Said(failed=True)
        meta = _meta(answer)
        failed = _failed(meta)
        if meta is None or meta.completion_tokens is None:
            return Said(there(answer.text) or there(answer.output_ids), None if meta is None else _usage(meta), failed)
        sample, count = bytes(answer.index)[:INDEX], meta.completion_tokens
        before = self._counts.get(sample)
        if before is None and len(self._counts) >= MAX_SAMPLES:
            return Said(failed=failed)
        self._counts[sample] = count
        self._generated += count - (before or 0)
        usage = _usage(meta) if len(self._counts) == 1 else Usage(None, self._generated)
        return Said(count > (before or 0), usage, failed)

    def whole(self, body: bytes) -> Said:
        """One answer, or a list of them for several prompts or samples."""
        many = read(_decode_many, body) if body.lstrip()[:1] == b"[" else None
        if many is None:
            one = read(_decode, body)
            many = [] if one is None else [one]
        metas = [meta for meta in map(_meta, many) if meta is not None]
        failed = any(there(answer.error) for answer in many) or any(map(_failed, metas))
        if len(metas) > 1:
            return Said(False, Usage(None, sum(meta.completion_tokens or 0 for meta in metas)), failed)
        return Said(False, _usage(metas[0]) if metas else None, failed)


def _meta(answer: _Answer) -> _Meta | None:
    return read(_decode_meta, answer.meta_info) if there(answer.meta_info) else None


def _failed(meta: _Meta | None) -> bool:
    """Within a stream the engine ends a sample that it could not serve with an abort and the status of an error
    (tokenizer_manager.py, _handle_abort_finish_reason); a client's own abort has none."""
    if meta is None or not there(meta.finish_reason):
        return False
    reason = read(_decode_reason, meta.finish_reason)
    return reason is not None and reason.type == "abort" and (reason.status_code or 0) >= 400


def _usage(meta: _Meta) -> Usage:
    return Usage(meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens)
