"""The declared estimate: bytes over a ratio. It is always marked as one, in `x-eluvix-tokens` and in the metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eluvix_extproc.core.prompt import Message, Prompt, TokenCount
from eluvix_extproc.tokens.counter import ESTIMATE, count_given_ids, scale_up, utf8_len

# Role markers and separators around one turn: 3 in OpenAI's ChatML, 4 in Llama 3 and Qwen.
MESSAGE_OVERHEAD_TOKENS = 4
# The opened assistant turn that a template ends with.
GENERATION_PROMPT_TOKENS = 3
# One image, audio or video part: between a 1024 x 1024 image in LLaVA (576) and in Qwen2.5-VL (about 1,300).
MEDIA_TOKENS = 768
_SECONDS_PER_BYTE = 0.4e-9
_SECONDS_PER_MESSAGE = 0.6e-6


@dataclass(frozen=True, slots=True)
class Estimate:
    """UTF-8 bytes of the text over `bytes_per_token`, plus declared overheads; needs nothing of the model.

    English prose and code are near 4 bytes a token in today's vocabularies, Chinese near 4.5 (1.5 characters), Thai
    and Hindi up to 8. Token-id prompts are exact even here.
    """

    bytes_per_token: float = 4.0
    media_tokens: int = MEDIA_TOKENS

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bytes_per_token) and self.bytes_per_token > 0):
            raise ValueError("bytes_per_token must be a positive number")
        if self.media_tokens < 0:
            raise ValueError("media_tokens must not be negative")

    @property
    def source(self) -> str:
        return ESTIMATE

    def cost_s(self, prompt: Prompt) -> float:
        return len(prompt.messages) * _SECONDS_PER_MESSAGE + prompt.read_bytes * _SECONDS_PER_BYTE

    def count(self, prompt: Prompt) -> TokenCount:
        if prompt.token_ids:
            return count_given_ids(prompt)
        if prompt.texts:
            tokens = sum(math.ceil(utf8_len(text) / self.bytes_per_token) for text in prompt.texts)
            return TokenCount(total=scale_up(tokens, prompt), exact=False)
        # Templates put the tools ahead of the turns, so every boundary includes them.
        read = len(prompt.tools)
        fixed = 0
        boundaries: list[int] = []
        for message in prompt.messages:
            text = message.text
            read += len(text) if text.isascii() else utf8_len(text)
            fixed += MESSAGE_OVERHEAD_TOKENS + message.media * self.media_tokens
            boundaries.append(fixed + math.ceil(read / self.bytes_per_token))
        total = boundaries[-1] if boundaries else math.ceil(read / self.bytes_per_token)
        if prompt.add_generation_prompt and not prompt.continue_final_message:
            total += GENERATION_PROMPT_TOKENS
        if not prompt.complete:
            total = scale_up(total, prompt)
        return TokenCount(total, False, tuple(boundaries))

    def media(self, messages: tuple[Message, ...]) -> int:
        """Tokens declared for all media parts of `messages`."""
        return self.media_tokens * sum(message.media for message in messages)
