"""Estimates that learn from the `usage` of answers, around a counter that has nothing better than one to say."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol, runtime_checkable
from weakref import WeakValueDictionary

from msgspec.structs import replace

from eluvix_extproc.core.prompt import Prompt, TokenCount
from eluvix_extproc.core.record import Evidence
from eluvix_extproc.tokens.counter import ESTIMATE, Counter, scale_up
from eluvix_extproc.tokens.estimate import GENERATION_PROMPT_TOKENS, MEDIA_TOKENS, MESSAGE_OVERHEAD_TOKENS, Estimate
from eluvix_extproc.tokens.learner import Learner, Weight
from eluvix_extproc.tokens.scripts import SAMPLED_CHARS, measure

# Names that no model is configured for come from clients: the ones that answered least recently are forgotten.
MAX_UNKNOWN_MODELS = 64
MAX_NAME_LENGTH = 256
# No tokenizer yields more tokens than this a byte with its template, nor fewer than one in so many bytes of text.
MOST_PER_BYTE = 4
BYTES_PER_LEAST = 64
MOST_PER_MEDIA = 8192
_LEAST_BOUND = 64
_SECONDS_PER_SAMPLE = 150e-6
_BYTES = (1, 0, 1, 1, 0, 1, 2, 2, 2, 0, 3, 3, 3, 3, 3, 4)     # of a unit of each class of Scripts
_AROUND = (
    Weight(0, 2, 0, 64),                                       # a text of a completion: BOS
    Weight(MESSAGE_OVERHEAD_TOKENS, 4, 0, 64),                 # a message
    Weight(0, 20, 0, 1024),                                    # a chat: BOS, a system prompt that the template adds
    Weight(GENERATION_PROMPT_TOKENS, 3, 0, 64),                # the opened answer
    Weight(0, 0.1, -0.25, 1),                                  # a byte of tools' JSON, beyond what it is as text
    Weight(0, 100, 0, 1024),                                   # tools at all: the template's words about them
    Weight(MEDIA_TOKENS, 600, 0, MOST_PER_MEDIA),              # an image, audio or video part
)


class Estimated(TokenCount, frozen=True):
    """`evidence` is what an answer's usage would be held against; None where nothing could be learned from it."""

    evidence: Evidence | None = None


@runtime_checkable
class Learning(Counter, Protocol):
    """A counter that the usage of answers makes better."""

    def learn(self, evidence: Evidence, reported: int) -> None:
        """`reported` tokens for the prompt that `evidence` is of; what cannot be true is not believed. Call from one
        thread."""
        ...


class Learned:
    """What has been learned, by a model and how it is counted; alive as long as a counter made from it."""

    def __init__(self) -> None:
        self._learners: WeakValueDictionary[Hashable, _Learner] = WeakValueDictionary()
        self._passed: WeakValueDictionary[Hashable, PassedModels] = WeakValueDictionary()

    def around(self, counter: Counter, name: str, tokenizer: Hashable) -> Learning:
        """`counter`, learning on from where the same model with an equal `tokenizer` is."""
        key = (name, tokenizer)
        learner = self._learners.get(key)
        if learner is None:
            learner = _learner_for(counter)
            self._learners[key] = learner
        return LearningCounter(counter, learner)

    def passed(self, bytes_per_token: float) -> Learning:
        """One counter for all models that are not configured."""
        found = self._passed.get(bytes_per_token)
        if found is None:
            found = PassedModels(bytes_per_token)
            self._passed[bytes_per_token] = found
        return found


class LearningCounter:
    """Replaces what `inner` estimates, never what it counts exactly."""

    def __init__(self, inner: Counter, learner: _Learner) -> None:
        self._inner = inner
        self._learner = learner

    @property
    def source(self) -> str:
        return self._inner.source

    def cost_s(self, prompt: Prompt) -> float:
        cost = self._inner.cost_s(prompt)
        if self._learner.by_text and not prompt.token_ids:
            cost += _SECONDS_PER_SAMPLE * min(1.0, prompt.read_bytes / SAMPLED_CHARS)
        return cost

    def count(self, prompt: Prompt) -> TokenCount:
        counted = self._inner.count(prompt)
        if counted.exact or prompt.token_ids or not (prompt.complete or self._learner.by_text):
            return counted
        media = sum([message.media for message in prompt.messages])
        values, text_bytes = _values(prompt, media, None if self._learner.by_text else counted.total)
        least = max(1, int(text_bytes / BYTES_PER_LEAST))
        most = max(MOST_PER_BYTE * prompt.read_bytes + MOST_PER_MEDIA * media, least, _LEAST_BOUND)
        evidence = None
        if prompt.complete and not prompt.elsewhere and prompt.samples == 1:
            evidence = Evidence(values, least, most)
        if not self._learner.learned:
            return Estimated(counted.total, False, counted.per_message, evidence=evidence)
        total = scale_up(min(max(self._learner.weigh(values), least), most), prompt)
        factor = total / counted.total if counted.total else 1.0
        return Estimated(total, False, tuple([round(end * factor) for end in counted.per_message]), evidence=evidence)

    def learn(self, evidence: Evidence, reported: int) -> None:
        if evidence.least <= reported <= evidence.most:
            self._learner.learn(evidence.features, float(reported))


class PassedModels:
    """Learns by the name that clients gave, for the MAX_UNKNOWN_MODELS that answered most recently."""

    source = ESTIMATE

    def __init__(self, bytes_per_token: float) -> None:
        self._declared = Estimate(bytes_per_token)
        self._fresh = LearningCounter(self._declared, _learner_for(self._declared))
        self._by_name: OrderedDict[str, LearningCounter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    def cost_s(self, prompt: Prompt) -> float:
        return self._fresh.cost_s(prompt)

    def count(self, prompt: Prompt) -> TokenCount:
        counted = self._by_name.get(prompt.model, self._fresh).count(prompt)
        if not isinstance(counted, Estimated) or counted.evidence is None:
            return counted
        if len(prompt.model) > MAX_NAME_LENGTH:
            return replace(counted, evidence=None)
        return replace(counted, evidence=replace(counted.evidence, model=prompt.model))

    def learn(self, evidence: Evidence, reported: int) -> None:
        counter = self._by_name.get(evidence.model)
        if counter is None:
            if not evidence.least <= reported <= evidence.most:
                return
            counter = self._by_name[evidence.model] = LearningCounter(self._declared, _learner_for(self._declared))
            if len(self._by_name) > MAX_UNKNOWN_MODELS:
                self._by_name.popitem(last=False)
        self._by_name.move_to_end(evidence.model)
        counter.learn(evidence, reported)


class _Learner(Learner):
    """`by_text`: it weighs the text by script; otherwise it corrects a count of the text by a tokenizer."""

    def __init__(self, features: tuple[Weight, ...], by_text: bool) -> None:
        super().__init__(features)
        self.by_text = by_text


def _learner_for(counter: Counter) -> _Learner:
    if isinstance(counter, Estimate):
        per_byte = 1.0 / counter.bytes_per_token
        text = [
            Weight(size * per_byte, size * max(0.15, per_byte / 2), 0, MOST_PER_BYTE) if size
            else Weight(0, 0.3, -1, 2)
            for size in _BYTES
        ]  # fmt: skip
        return _Learner((*text, *_AROUND), by_text=True)
    # The overheads are in what the counter says: only what they are off by is learned.
    sequence, *_, tools, tooled, media = _AROUND
    off = (Weight(0, 4, -16, 64), Weight(0, 20, -64, 1024), Weight(0, 3, -16, 64))
    return _Learner((Weight(1, 0.05, 0.25, 4), sequence, *off, tools, tooled, media), by_text=False)


def _values(prompt: Prompt, media: int, counted: int | None) -> tuple[tuple[float, ...], float]:
    """The features of a prompt in the order of its learner's weights, with the text weighed by script where it was not
    counted; and the text's size in UTF-8, 0 when it was."""
    chat = bool(prompt.messages)
    around = (
        float(len(prompt.texts)),
        float(len(prompt.messages)),
        float(chat),
        float(chat and prompt.add_generation_prompt and not prompt.continue_final_message),
        float(len(prompt.tools)),
        float(bool(prompt.tools)),
        float(media),
    )
    if counted is not None:
        return (float(counted - MEDIA_TOKENS * media), *around), 0.0
    texts = prompt.texts or [message.text for message in prompt.messages]
    scripts = measure([prompt.tools.decode("utf-8", "replace"), *texts] if prompt.tools else texts)
    return (*scripts[:-1], *around), scripts.utf8_bytes
