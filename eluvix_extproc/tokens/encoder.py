"""A tokenizer.json as a fast encoder: fastokens where it is proven equal to `tokenizers`, else `tokenizers` itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.tokens.corpus import self_check_texts, timing_text
from eluvix_extproc.tokens.counter import pack_ids

# Texts in, one packed u32 array a text out; added tokens in the text are recognised, none are put around it.
Encode = Callable[[list[str]], list[bytes]]

_TIMED_BYTES = 16_384
_CHECKED_SPECIALS = 64
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_NAMED_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Encoder:
    """`prefix` and `suffix` are the packed ids that the post-processor puts around a completion's text (a BOS, mostly).

    `spec` is the tokenizer.json without its vocabulary, `config` the tokenizer_config.json beside it, `specials` the
    named special tokens that templates are given. `bytes_per_s` is the measured speed on fresh text, one thread.
    """

    library: str
    encode: Encode
    bytes_per_s: float
    prefix: bytes
    suffix: bytes
    spec: Mapping[str, Any]
    config: Mapping[str, Any]
    specials: Mapping[str, str]


def load(path: Path, *, allow_fastokens: bool = True) -> Encoder:
    """Raises ConfigError when the file cannot be read or is no tokenizer."""
    import tokenizers

    try:
        reference = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError([f"tokenizer {path}: {error}"]) from error
    config = _read_config(path.with_name("tokenizer_config.json"))
    specials = _named_specials(config)
    # Engines call the tokenizer with truncation and padding off, whatever the file says.
    reference.no_truncation()
    reference.no_padding()
    _add_missing_tokens(reference, config, specials)
    reference.encode_special_tokens = bool(config.get("split_special_tokens"))

    serialized = reference.to_str()
    spec = json.loads(serialized)
    added = [token["content"] for token in spec["added_tokens"]]
    encode, library = _reference_encode(reference), "tokenizers"
    if allow_fastokens:
        fast = _fastokens_encode(serialized)
        if fast is not None and _agree(fast, encode, self_check_texts(_spread(added, _CHECKED_SPECIALS))):
            encode, library = fast, "fastokens"
    for bulky in ("vocab", "merges"):
        spec["model"].pop(bulky, None)
    prefix, suffix = _surroundings(reference)
    return Encoder(library, encode, _measure(encode), prefix, suffix, spec, config, specials)


def _reference_encode(tokenizer: Any) -> Encode:
    # encode() holds the GIL, the batch calls release it; the fast one skips offsets.
    encode_batch = tokenizer.encode_batch_fast

    def encode(texts: list[str]) -> list[bytes]:
        return [pack_ids(encoding.ids) for encoding in encode_batch(texts, add_special_tokens=False)]

    return encode


def _fastokens_encode(serialized: str) -> Encode | None:
    try:
        import fastokens

        encode_flat = fastokens.Tokenizer.from_json_str(serialized).encode_batch_flat
    except Exception:  # not installed, or a tokenizer that it does not support
        return None

    def encode(texts: list[str]) -> list[bytes]:
        # One call a text: a batch goes through a thread pool, whose wake-ups cost more than the work.
        return [encode_flat([text])[0] for text in texts]

    return encode


def _agree(one: Encode, other: Encode, texts: list[str]) -> bool:
    try:
        return one(texts) == other(texts)
    except Exception:
        return False


def _spread(items: Sequence[str], count: int) -> list[str]:
    """Up to `count` of `items`, from all over: tokenizers reserve long runs of look-alikes."""
    step = max(1, -(-len(items) // count))
    return list(items[::step])


def _measure(encode: Encode) -> float:
    text = timing_text(_TIMED_BYTES)
    encode([text[: _TIMED_BYTES // 8]])
    started = time.perf_counter()
    encode([text])
    return len(text) / max(time.perf_counter() - started, 1e-6)


def _surroundings(tokenizer: Any) -> tuple[bytes, bytes]:
    """What the post-processor adds around any text; it does not depend on the text. Where there is a tokenizer.json,
    engines do not ask tokenizer_config.json for `add_bos_token` (transformers 5, tokenization_utils_base.py)."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return pack_ids(full[:start]), pack_ids(full[start + len(bare) :])
    return b"", b""


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError([f"tokenizer {path}: {error}"]) from error
    return config if isinstance(config, dict) else {}


def _named_specials(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, given either as text or as a serialised AddedToken."""
    values = {name: _content(config.get(name)) for name in _NAMED_SPECIALS}
    return {name: value for name, value in values.items() if value is not None}


def _content(token: object) -> str | None:
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _add_missing_tokens(tokenizer: Any, config: Mapping[str, Any], specials: Mapping[str, str]) -> None:
    """tokenizer_config.json may declare added tokens that tokenizer.json lacks; engines add them at load."""
    import tokenizers

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder") or {}
    for _, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if token["content"] not in known:
            flags = {name: bool(token.get(name)) for name in _TOKEN_FLAGS}
            added = tokenizers.AddedToken(token["content"], **flags)
            (tokenizer.add_special_tokens if flags["special"] else tokenizer.add_tokens)([added])
            known.add(token["content"])
    others = [*specials.values(), *_extra_specials(config)]
    tokenizer.add_special_tokens([token for token in dict.fromkeys(others) if token not in known])


def _extra_specials(config: Mapping[str, Any]) -> list[str]:
    """Special tokens without a name of their own, and those that only this model has a name for."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    values = extra.values() if isinstance(extra, Mapping) else extra
    return [token for token in map(_content, values) if token is not None]
