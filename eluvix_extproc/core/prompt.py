"""What the engine will prefill, in one shape for every request format.

`prompt/` builds a Prompt from a request body; `tokens/` counts it; `core/prefix.py` hashes it.
"""

from __future__ import annotations

from enum import StrEnum

from eluvix_extproc.core.value import Value


class Api(StrEnum):
    """The request formats we understand; the value is the `api` label of metrics."""

    OPENAI_CHAT = "openai.chat"
    OPENAI_COMPLETIONS = "openai.completions"
    OPENAI_RESPONSES = "openai.responses"
    OPENAI_EMBEDDINGS = "openai.embeddings"
    RERANK = "rerank"
    ANTHROPIC_MESSAGES = "anthropic.messages"
    ANTHROPIC_COUNT_TOKENS = "anthropic.count_tokens"
    VLLM_GENERATE = "vllm.generate"
    SGLANG_GENERATE = "sglang.generate"


# Formats whose answer is generated token by token: all others are a prefill and no more.
GENERATING = frozenset(Api) - {Api.OPENAI_EMBEDDINGS, Api.RERANK, Api.ANTHROPIC_COUNT_TOKENS}


class Message(Value, frozen=True):
    """One turn.

    `canonical` are the bytes that are hashed: equal for equal messages whatever the client's whitespace, key order
    or null fields. `text` is all that the engine will tokenise of it, for the estimate. `raw` is the message's JSON
    in the form of `/v1/chat/completions`, for the chat template: as sent there, and as the engine itself converts it
    where the request has another form. `media` counts image, audio and video parts. `key` is 16 bytes that tell
    messages apart for memos: they differ where `raw` or `canonical` do, and are secret by a seed of the process; b""
    when they were not computed. `raw` is b"" for a message that is never rendered, being too costly to read.
    """

    role: str
    canonical: bytes
    text: str
    raw: bytes
    media: int = 0
    key: bytes = b""


class Prompt(Value, frozen=True):
    """One request's prompt and the few request fields that routing needs.

    Exactly one of `messages`, `texts` and `token_ids` is non-empty (chat; completions with text; completions with
    token ids, one tuple per sequence). `complete` is False when only a head of the body was read: then everything
    derived from it is an estimate, `body_bytes` is the size announced by content-length (or what was read) and
    `read_bytes` what the prompt was built from.
    """

    api: Api
    model: str
    stream: bool
    body_bytes: int
    read_bytes: int
    complete: bool = True
    messages: tuple[Message, ...] = ()
    texts: tuple[str, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    tools: bytes = b""              # canonical JSON of `tools`, b"" when absent
    tools_raw: bytes = b""          # for the chat template, in the form of `/v1/chat/completions`
    template_kwargs: bytes = b""    # `chat_template_kwargs` as sent
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    salt: str = ""                  # `cache_salt`
    include_usage: bool = False     # stream_options.include_usage
    max_tokens: int | None = None   # the client's own output limit
    samples: int = 1                # `n`
    reserved: bool = False          # members that `core/reserved.py` may have to strip are there
    add_special_tokens: bool = True     # of `texts`: the tokenizer's own BOS and its like are added
    elsewhere: bool = False         # part of it is not in the body (previous_response_id, embeddings): never exact
    cache_key: str = ""             # `prompt_cache_key`: the client's own name for what shares a prefix
    user: str = ""                  # `user` (Anthropic: `metadata.user_id`): the end user, as the client names them


class TokenCount(Value, frozen=True):
    """Prompt tokens. `exact` only when the model's own tokenizer and template counted every one of them.

    `per_message` are cumulative counts at message boundaries (same length as Prompt.messages, or empty when they are
    not known); `ids` are the token ids as little-endian u32 bytes when exact and wanted for the block chain, else b"".
    """

    total: int
    exact: bool
    per_message: tuple[int, ...] = ()
    ids: bytes = b""


class PrefixPoint(Value, frozen=True):
    """A prefix of the prompt that the index can know: `key` is xxh3-64 of its chain digest, `tokens` its length."""

    key: int
    tokens: int


class PrefixChain(Value, frozen=True):
    """`root` is the 32-byte SHA-256 behind `x-eluvix-kv-prefix-hash` (b"" when nothing of the prompt is known);
    `points` are in order of growing length. `root_tokens` is the length of the conversation's own beginning, its first
    user turn included, and 0 where a prompt has none: a shorter prefix may be shared by many conversations.

    `steadied` says that volatile lines were left out of the root, so that equal roots no longer mean equal tokens."""

    root: bytes
    points: tuple[PrefixPoint, ...] = ()
    root_tokens: int = 0
    steadied: bool = False
