"""Hardware, work, times and transfer against figures worked out by hand and published ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics import hardware
from eluvix_extproc.physics.catalogue import load_model
from eluvix_extproc.physics.geometry import kv_bytes
from eluvix_extproc.physics.phases import Efficiency, Worker
from eluvix_extproc.physics.transfer import Mode, Route, Transfer, transfer
from eluvix_extproc.physics.work import attention_flop, decode, prefill

CATALOGUE = hardware.load()
H100 = CATALOGUE.accelerator("h100-sxm")
LINK = Route(CATALOGUE.link("400gbe"))
LLAMA_8B, LLAMA_70B = load_model("llama-3.1-8b"), load_model("llama-3.3-70b")


# ---- hardware --------------------------------------------------------------------------------------------------------


def test_the_ridge_is_by_dtype() -> None:
    """989.4 TFLOPS is the dense BF16 peak; FP8 has twice that, and so twice the ridge."""
    assert H100.ridge("bf16") == pytest.approx(295.3, abs=0.05)
    assert H100.ridge("fp8") == pytest.approx(590.7, abs=0.05)
    with pytest.raises(ConfigError, match="no matrix units for fp4; it has bf16, fp8"):
        H100.ridge("fp4")


def test_names_numbers_and_own_entries(tmp_path: Path) -> None:
    assert CATALOGUE.link("46.6GBps").usable_bytes_per_s == 46.6e9
    for wrong in ("h100", "h100-smx"):
        with pytest.raises(ConfigError, match="h100-sxm"):
            CATALOGUE.accelerator(wrong)
    for wrong in ("-1GBps", "fastGBps", "0GBps"):
        with pytest.raises(ConfigError):
            CATALOGUE.link(wrong)
    own = tmp_path / "own.yaml"
    own.write_text("accelerators: {mine: {tflops: {bf16: 1}, memoryTBps: 1, memoryGB: 1}}\nlinks: {l: {lineGBps: 2}}")
    both = hardware.load(own)
    assert both.accelerator("mine").ridge("bf16") == 1 and both.accelerator("h100-sxm") == H100
    assert both.link("l").usable_bytes_per_s == 2e9


@pytest.mark.parametrize(
    "text", ["accelerators: {a: {}}", "accelerators: [1]", "- 1", "a: {b: [", "links: {l: {lineGBps: -1}}"]
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(ConfigError, match=r"own\.yaml"):
        hardware.load(own)


# ---- work ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tokens", "ratio"),
    [("llama-3.3-70b", 4_096, 0.04), ("llama-3.3-70b", 32_768, 0.31), ("llama-3.3-70b", 131_072, 1.25),
     ("qwen3-235b-a22b", 4_096, 0.15), ("qwen3-235b-a22b", 32_768, 1.20)],
)  # fmt: skip
def test_attention_grows_with_the_square(name: str, tokens: int, ratio: float) -> None:
    """Its FLOP over those of the layers' matrices; the head, which is multiplied once, is in neither."""
    weights = load_model(name).weights
    assert weights is not None
    assert attention_flop(weights, tokens) / (2 * weights.active * tokens) == pytest.approx(ratio, abs=0.005)


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from(["llama-3.1-8b", "gemma-3-4b", "gpt-oss-20b"]))
def test_attention_counts_every_pair_once(cached: int, tokens: int, name: str) -> None:
    weights = load_model(name).weights
    assert weights is not None
    expected = sum(
        2 * width * sum(min(cached + at, cap or cached + at) for at in range(1, tokens + 1))
        for cap, width in weights.pairs
    )
    assert attention_flop(weights, tokens, cached) == pytest.approx(expected)


def test_prefill_is_bound_by_computation_and_decode_by_memory() -> None:
    assert prefill(LLAMA_70B, 4_096).intensity > 2_048 > H100.ridge("bf16")
    for batch in (1, 16, 64):
        assert decode(LLAMA_70B, batch, 4_096).intensity < H100.ridge("bf16")
    # The linear layers alone: 2 FLOP per parameter and sequence, 2 bytes per parameter.
    assert decode(LLAMA_70B, 16, 1).intensity == pytest.approx(16, rel=0.01)
    assert decode(LLAMA_70B, 16, 1, dtype="fp8").intensity == pytest.approx(32, rel=0.01)


# ---- times -----------------------------------------------------------------------------------------------------------


def test_a_prefill_takes_its_work_over_the_stated_share_of_the_peak() -> None:
    worker = Worker(LLAMA_8B, H100)
    flop = prefill(LLAMA_8B, 4_096).flop
    assert worker.prefill_s(4_096) == pytest.approx(flop / (989.4e12 * 0.45))
    assert worker.prefill_s(0) == 0
    half = Worker(LLAMA_8B, H100, efficiency=Efficiency(compute=0.225))
    assert half.prefill_s(4_096) == pytest.approx(2 * worker.prefill_s(4_096))


def test_a_decode_step_takes_what_it_reads() -> None:
    worker = Worker(LLAMA_8B, H100)
    read = 2 * (6.98e9 + 0.525e9) + 32 * kv_bytes(LLAMA_8B.geometry, 2_048, "bf16")
    assert worker.decode_step_s(32, 2_048) == pytest.approx(read / (3.35e12 * 0.7), rel=0.001)


@given(st.integers(1, 60_000), st.integers(0, 60_000), st.sampled_from([1, 2, 8]))
def test_times_grow_with_what_is_asked(tokens: int, cached: int, tp: int) -> None:
    worker = Worker(LLAMA_8B, H100, tp)
    assert worker.prefill_s(tokens, cached) <= worker.prefill_s(tokens + 1, cached) * (1 + 1e-12)
    assert worker.prefill_s(tokens, cached) <= worker.prefill_s(tokens, cached + 1) * (1 + 1e-12)
    assert worker.decode_step_s(4, tokens) <= worker.decode_step_s(5, tokens) * (1 + 1e-12)


def test_a_batch_fits_memory_and_time() -> None:
    worker = Worker(LLAMA_8B, H100)
    room = 80e9 * 0.9 - 2 * 8.03e9
    assert worker.most_sequences(4_096) == int(room // kv_bytes(LLAMA_8B.geometry, 4_096, "bf16"))
    within = worker.batch_within(0.012, 4_096)
    assert worker.decode_step_s(within, 4_096) <= 0.012 < worker.decode_step_s(within + 1, 4_096)
    assert Worker(LLAMA_70B, H100).most_sequences(1) == 0, "140 GB of weights are no cache"


@pytest.mark.parametrize("shares", [(0, 1, 1), (1.1, 1, 1), (0.5, -1, 1), (0.5, 0.5, float("nan"))])
def test_an_efficiency_is_a_share(shares: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError):
        Efficiency(*shares)


# ---- transfer --------------------------------------------------------------------------------------------------------


def moved(name: str, tp: int, mode: Mode, tokens: int, cached: int = 0, route: Route = LINK, **more: int) -> Transfer:
    model = load_model(name)
    worker = Worker(model, H100, tp)
    assert model.weights is not None
    return transfer(
        mode, route, layers=model.weights.layers, tokens=tokens, cached=cached,
        kv_bytes=lambda n: kv_bytes(model.geometry, n, "bf16"), prefill_s=worker.prefill_s, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tp", "layers"), [("llama-3.1-8b", 1, 32), ("llama-3.3-70b", 8, 80), ("deepseek-v3", 8, 61)]
)
def test_cold_and_layer_by_layer_all_but_one_layer_is_hidden(name: str, tp: int, layers: int) -> None:
    assert moved(name, tp, Mode.LAYERWISE, 4_096).hidden == pytest.approx(1 - 1 / layers)


def test_a_warm_prefix_has_little_to_hide_behind() -> None:
    """32,768 tokens to move and 512 to compute: nearly everything is exposed, layer by layer or not."""
    cold = moved("llama-3.3-70b", 8, Mode.LAYERWISE, 32_768)
    warm = moved("llama-3.3-70b", 8, Mode.LAYERWISE, 32_768, cached=32_768 - 512)
    assert cold.hidden > 0.98 and warm.hidden < 0.2
    assert warm.wire_s == cold.wire_s


def test_a_pull_hides_nothing_and_chunks_all_but_the_last() -> None:
    assert moved("llama-3.3-70b", 8, Mode.PULL, 32_768).hidden == 0
    chunked = moved("llama-3.3-70b", 8, Mode.CHUNKED, 32_768, chunk_tokens=8_192)
    assert chunked.hidden == pytest.approx(0.75, abs=0.001)
    assert moved("llama-3.3-70b", 8, Mode.CHUNKED, 4_096, chunk_tokens=8_192).hidden == pytest.approx(0)


def test_bytes_and_wire_time_of_the_documents_models() -> None:
    """4,096 tokens in FP8 at 400GbE line rate. Columns that say 625.0, 134.0 and 250.0 MB mix thousands per token with
    MiB, and 12.50 ms for the first follows from that."""
    line = Route(CATALOGUE.link("50GBps"), latency_s=0)
    for name, per_token, megabytes, milliseconds in (
        ("llama-3.3-70b", 163_840, 671.1, 13.42),
        ("deepseek-v3", 35_136, 143.9, 2.88),
        ("llama-3.1-8b", 65_536, 268.4, 5.37),
    ):
        size = kv_bytes(load_model(name).geometry, 4_096, "fp8")
        assert size == 4_096 * per_token
        assert size / 1e6 == pytest.approx(megabytes, abs=0.05)
        assert line.wire_s(size) * 1_000 == pytest.approx(milliseconds, abs=0.005)


@given(
    st.sampled_from(list(Mode)),
    st.integers(2, 40_000),
    st.integers(0, 39_999),
    st.integers(1, 8),
    st.integers(64, 9_000),
)
def test_what_is_exposed_is_never_more_than_the_wire_time(
    mode: Mode, tokens: int, cached: int, interfaces: int, chunk: int
) -> None:
    route = Route(CATALOGUE.link("100gbe"), interfaces)
    cached = min(cached, tokens - 1)
    told = moved("llama-3.1-8b", 1, mode, tokens, cached, route, chunk_tokens=chunk)
    assert 0 < told.exposed_s <= told.wire_s * (1 + 1e-9)
    assert 0 <= told.hidden < 1
