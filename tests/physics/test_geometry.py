from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.catalogue import load, names
from eluvix_extproc.physics.geometry import Geometry, bytes_per_token, kv_bytes
from eluvix_extproc.physics.layers import Attention, Latent, State

WINDOWED = Geometry(((3, Attention(2, 16, 16, cap=100)), (1, Attention(2, 16, 16))))
LAYER = 2 * 2 * 16 * 2


@pytest.mark.parametrize(("tokens", "held"), [(0, 0), (1, 1), (99, 99), (100, 100), (101, 100), (5_000, 100)])
def test_a_window_holds_no_more_than_itself(tokens: int, held: int) -> None:
    assert kv_bytes(WINDOWED, tokens, "bf16") == LAYER * (3 * held + tokens)


def test_the_marginal_token_costs_less_once_the_windows_are_full() -> None:
    assert bytes_per_token(WINDOWED, "bf16", after=99) == 4 * LAYER
    assert bytes_per_token(WINDOWED, "bf16", after=100) == LAYER
    assert bytes_per_token(WINDOWED, "bf16") == LAYER


@given(st.sampled_from(names()), st.integers(min_value=1, max_value=300_000), st.sampled_from(["bf16", "fp8"]))
def test_the_marginal_token_is_the_difference_of_two_sizes(name: str, tokens: int, dtype: str) -> None:
    geometry = load(name)
    grown = kv_bytes(geometry, tokens + 1, dtype) - kv_bytes(geometry, tokens, dtype)
    assert grown == bytes_per_token(geometry, dtype, after=tokens)


def test_a_state_is_the_sequences_and_not_the_tokens() -> None:
    geometry = Geometry(((4, State(1_000)),))
    assert [kv_bytes(geometry, tokens, "fp8") for tokens in (0, 1, 50_000)] == [0, 4_000, 4_000]
    assert bytes_per_token(geometry, "fp8", after=0) == 0
    assert geometry.constant_bytes == 4_000


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("bf16", 2), ("fp16", 2), ("auto", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("int8", 1)],
)
def test_the_dtype_sets_the_width(dtype: str, size: int) -> None:
    assert bytes_per_token(Geometry(((1, Attention(1, 8, 8)),)), dtype) == 16 * size


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="kvCacheDtype 'fp7' is not known"):
        kv_bytes(WINDOWED, 10, "fp7")


def test_heads_are_split_over_the_ranks_until_each_has_one() -> None:
    geometry = Geometry(((1, Attention(8, 128, 128)),))
    assert kv_bytes(geometry, 10, "bf16", tp=8) == kv_bytes(geometry, 10, "bf16")
    assert kv_bytes(geometry, 10, "bf16", tp=16) == 2 * kv_bytes(geometry, 10, "bf16")


def test_every_rank_keeps_its_own_latent() -> None:
    geometry = Geometry(((1, Latent(512, 64)),))
    assert kv_bytes(geometry, 10, "bf16", tp=8) == 8 * kv_bytes(geometry, 10, "bf16")
