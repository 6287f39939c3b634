from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eluvix_extproc.config.models import Settings

WORKERS = ["192.0.2.21:8000", "[2001:db8::1]:80"]
POOLS: list[dict[str, Any]] = [
    {"name": "p", "role": "prefill", "cluster": "llm-prefill", "workers": {"static": ["192.0.2.11:8000"]}},
    {"name": "d", "role": "decode", "cluster": "llm-decode", "workers": {"static": WORKERS}},
]


@pytest.fixture
def settings() -> Callable[..., Settings]:
    """Settings of two pools with sections replaced, e.g. settings(server={"processes": 2})."""
    return lambda **sections: Settings.model_validate({"pools": POOLS, **sections})
