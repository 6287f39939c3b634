"""Whatever the format, and however a body is cut on its way, the decision is the one that its bytes call for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eluvix_extproc.explain.explanation import Request, explain
from tests.e2e.bodies import requests
from tests.e2e.conftest import PROFILES
from tests.support.client import post
from tests.support.stack import MODEL, Stack

TOKENIZER = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny" / "tokenizer.json"
# Roles by the prompt alone, since what workers hold is not known here.
EXACT = {
    "server": {"drainTimeout": "100ms"},
    "models": [{"name": MODEL, "tokenizer": {"file": str(TOKENIZER)}}],
    "switchyard": {"prefillIsolationThresholdTokens": 120, "prefillIsolationBasis": "prompt"},
}


@pytest.fixture(scope="module", params=PROFILES)
def exact(request: pytest.FixtureRequest, stacks: Callable[[str], Stack]) -> Iterator[Stack]:
    """A gateway that knows the model's tokenizer, before the workers of one that others use."""
    with Stack(request.param, EXACT, beside=stacks("hybrid")) as stack:
        yield stack


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=requests(), http2=st.booleans())
def test_the_decision_is_that_of_the_bytes(exact: Stack, asked: tuple[str, bytes, list[bytes]], http2: bool) -> None:
    path, body, pieces = asked
    expected = explain(exact.settings, Request({":path": path}, body, {}, {}))
    assert expected.count is not None and expected.chain is not None and expected.decision is not None
    answer = post(exact.port, pieces, path, http2=http2)
    assert answer.status == 200, answer.body
    assert answer.ours("failopen") is None
    assert answer.ours("kv-prefix-hash") == expected.chain.root.hex()
    assert answer.ours("pd-role") == answer.headers["x-sim-role"] == expected.decision.role
    tokens, _, source = (answer.ours("tokens") or "").partition(";source=")
    assert source == ("exact" if expected.count.exact else "estimate")
    assert source == "estimate" or int(tokens) == expected.count.total
