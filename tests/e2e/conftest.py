"""Gateways that tests share: one for each body mode, started when first asked for. Tests leave them as they were."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.stack import Stack

PROFILES = ("hybrid", "full-duplex", "buffered")
QUICK_STOP = {"server": {"drainTimeout": "100ms"}}
QUICK_PREFILL = ("--prefill-tokens-per-s", "400000")


@pytest.fixture(scope="session")
def stacks() -> Iterator[Callable[[str], Stack]]:
    with ExitStack() as running:
        started: dict[str, Stack] = {}

        def get(profile: str) -> Stack:
            if profile not in started:
                started[profile] = running.enter_context(Stack(profile, QUICK_STOP, worker_options=QUICK_PREFILL))
            # A test before may have made workers fail, which keeps them from being chosen for a while.
            started[profile].wait_for_fleet(ready=3)
            return started[profile]

        yield get


@pytest.fixture(params=PROFILES)
def stack(request: pytest.FixtureRequest, stacks: Callable[[str], Stack]) -> Stack:
    """Each body mode in turn."""
    return stacks(request.param)


@pytest.fixture
def hybrid(stacks: Callable[[str], Stack]) -> Stack:
    return stacks("hybrid")


@pytest.fixture
def full_duplex(stacks: Callable[[str], Stack]) -> Stack:
    """Every response is seen to its end in this mode."""
    return stacks("full-duplex")


@pytest.fixture(params=(False, True), ids=("h1", "h2"))
def http2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def mark() -> str:
    """Unlike any other test's: as header `x-test` it finds a request again, as a text it makes a prompt unique."""
    return uuid.uuid4().hex
