"""Where a text may be cut so that its parts tokenise alone exactly as they do within the whole.

`tokenizers` (added_vocabulary.rs, extract_and_normalize) first finds the added tokens that are matched on raw text,
leftmost-longest, and only then normalises, pre-tokenises and runs the model on each stretch between them. So the ids of
a text are those of the stretches joined, provided that an occurrence of the cut token is always matched as itself and
that nothing downstream looks at a stretch's place in the whole. Both are checked here; where they do not hold there
are no cuts, and texts are encoded whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# All of these work on one stretch at a time, with no knowledge of where it stands.
_NORMALIZERS = frozenset({
    "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend",
    "Replace", "Sequence", "Strip", "StripAccents",
})  # fmt: skip
_PRE_TOKENIZERS = frozenset({
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation", "Sequence", "Split",
    "UnicodeScripts", "Whitespace", "WhitespaceSplit",
})  # fmt: skip
_MODELS = frozenset({"BPE", "Unigram", "WordLevel", "WordPiece"})
# These add ids only for add_special_tokens=True, which the encoder never asks for.
_POST_PROCESSORS = frozenset({"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"})


def sure_cuts(spec: Mapping[str, Any], candidates: Iterable[str]) -> tuple[str, ...]:
    """Those of `candidates` at which cutting is sound for the tokenizer.json `spec`; () when none is."""
    added: Sequence[Mapping[str, Any]] = spec.get("added_tokens") or ()
    if not _stretches_are_independent(spec) or any(token["single_word"] for token in added):
        return ()
    raw = [token["content"] for token in added if not token["normalized"]]
    late = [token["content"] for token in added if token["normalized"]]
    unchanged = _normalizes_nothing(spec.get("normalizer"))
    plain = {token["content"]: token for token in added if not (token["lstrip"] or token["rstrip"])}

    def is_sure(text: str) -> bool:
        if text not in plain:
            return False
        if not plain[text]["normalized"]:
            return _wins(text, raw)
        # Matched in a second pass, on normalised text: sure only where that is the text itself and the first pass
        # leaves it alone.
        return unchanged and _wins(text, late) and not any(_overlap(text, other) for other in raw)

    return tuple(text for text in dict.fromkeys(candidates) if is_sure(text))


def _stretches_are_independent(spec: Mapping[str, Any]) -> bool:
    model = spec.get("model") or {}
    pre_tokenizers = list(_parts(spec.get("pre_tokenizer"), "pretokenizers"))
    return (
        all(part["type"] in _NORMALIZERS for part in _parts(spec.get("normalizer"), "normalizers"))
        and all(part["type"] in _PRE_TOKENIZERS for part in pre_tokenizers)
        # "first" marks only the stretch at the very start of the text.
        and all(part.get("prepend_scheme", "always") != "first" for part in pre_tokenizers)
        and all(part["type"] in _POST_PROCESSORS for part in _parts(spec.get("post_processor"), "processors"))
        and model.get("type") in _MODELS
        and not model.get("dropout")
    )


def _parts(node: Mapping[str, Any] | None, children: str) -> Iterator[Mapping[str, Any]]:
    if node is None:
        return
    yield node
    for child in node.get(children) or ():
        yield from _parts(child, children)


def _normalizes_nothing(normalizer: Mapping[str, Any] | None) -> bool:
    return all(part["type"] == "Sequence" for part in _parts(normalizer, "normalizers"))


def _wins(text: str, rivals: Iterable[str]) -> bool:
    """No other match of the same pass can cover part of an occurrence of `text`, another one of itself included.

    A rival inside `text` is no danger: leftmost-longest prefers `text`. Leading or trailing whitespace is refused
    because a neighbour with rstrip or lstrip would swallow it.
    """
    if not text or text[0].isspace() or text[-1].isspace():
        return False
    return not any((other != text and text in other) or _ends_into(other, text) for other in rivals)


def _overlap(one: str, other: str) -> bool:
    return one in other or other in one or _ends_into(one, other) or _ends_into(other, one)


def _ends_into(one: str, other: str) -> bool:
    """Some proper end of `one` is a proper beginning of `other`."""
    return any(other.startswith(one[-size:]) for size in range(1, min(len(one), len(other))))
