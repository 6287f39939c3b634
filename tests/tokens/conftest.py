from __future__ import annotations

import pytest

from eluvix_extproc.tokens.exact import ExactCounter, from_file
from tests.tokens.prompts import TINY, Oracle


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="session", params=["fastokens", "tokenizers"])
def library(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def tiny(library: str) -> ExactCounter:
    counter = from_file(TINY, allow_fastokens=library == "fastokens")
    assert counter.library == library
    return counter
