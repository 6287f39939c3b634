"""`plan`: figures that follow from physics, readable and as JSON, quickly and without the server's parts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.cli import main
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics import hardware
from eluvix_extproc.physics.break_even import break_even, longest_unnoticed
from eluvix_extproc.physics.catalogue import load_model, names
from eluvix_extproc.physics.phases import Worker
from eluvix_extproc.physics.transfer import Mode, Route
from eluvix_extproc.plan.figures import Handoff, Load, Plan, plan, whole_workers

CATALOGUE = hardware.load()
H100 = CATALOGUE.accelerator("h100-sxm")
HANDOFF = Handoff(Route(CATALOGUE.link("400gbe")), Mode.PULL)
LLAMA = ("--model", "llama-3.3-70b", "--accelerator", "h100-sxm", "--tp", "8")


def run(*options: str) -> Result:
    return CliRunner().invoke(main, ["plan", *options])


def told(*options: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(run(*options, "--json").stdout)
    return value


def made(name: str = "llama-3.3-70b", tp: int = 8, load: Load | None = None, handoff: Handoff = HANDOFF) -> Plan:
    return plan(Worker(load_model(name), H100, tp), load or Load(4_096, 0, 256, 1.0), handoff)


def test_a_report_names_what_each_figure_rests_on() -> None:
    result = run(*LLAMA, "--dtype", "fp8", "--kv-dtype", "fp8", "--slo-itl", "30", "--rate", "20")
    assert result.exit_code == 0, result.output
    text = result.stdout
    for expected in (
        "590.7 FLOP/byte   dense fp8 peak over memory bandwidth",
        "163,840 bytes   beyond every window",
        "671.1 MB   4,096 tokens",
        "45% of the FLOP peak",
        "70% of the memory bandwidth",
        "pull: 0.0% hidden behind the prefill",
        "sequences, as memory and the promised ITL allow",
        "break-even",
        "unnoticed",
    ):
        assert expected in text


def test_the_configured_threshold_is_held_against_the_break_even(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("pools: [{name: a, role: decode, cluster: c, workers: {static: ['1.1.1.1:1']}}]")
    assert "4,096 tokens   configured: above the break-even" in run(*LLAMA, "--config", str(config)).stdout
    assert told(*LLAMA, "--config", str(config))["configured_threshold_tokens"] == 4096


def test_workers_follow_from_demand() -> None:
    one, ten = made(), made(load=Load(4_096, 0, 256, 10.0))
    assert ten.prefill_workers == pytest.approx(10 * one.prefill_workers) == pytest.approx(10 * one.prefill_s)
    assert one.decode_workers is not None and one.itl_s is not None
    assert one.decode_workers == pytest.approx(256 * one.itl_s / one.batch)
    assert one.prefill_to_decode == pytest.approx(one.prefill_workers / one.decode_workers)
    assert [whole_workers(value) for value in (0.0, 0.8, 0.81, 1.6)] == [1, 1, 2, 2]


def test_a_promise_bounds_the_batch_and_what_goes_unnoticed() -> None:
    free, bound = made(), made(load=Load(4_096, 0, 256, 1.0, slo_itl_s=0.02))
    assert bound.itl_s is not None and bound.itl_s <= 0.02 and bound.batch < free.batch
    assert free.unnoticed_tokens is None and bound.unnoticed_tokens is not None
    worker = Worker(load_model("llama-3.3-70b"), H100, 8)
    context, most = 4_096 + 128, bound.unnoticed_tokens
    step = worker.decode_step_s(bound.batch, context)
    assert step + worker.stall_s(most, 0, bound.batch, context, most) <= 0.02
    assert step + worker.stall_s(most + 1, 0, bound.batch, context, most + 1) > 0.02


def test_a_prefill_that_fits_into_idle_computing_power_stalls_nobody() -> None:
    worker = Worker(load_model("llama-3.3-70b"), H100, 8)
    assert worker.stall_s(16, 0, 8, 2_048, 8_192) == pytest.approx(0, abs=1e-5)
    assert worker.stall_s(8_192, 0, 8, 2_048, 8_192) == pytest.approx(worker.prefill_s(8_192), rel=0.05)
    whole, chunked = (worker.stall_s(8_192, 0, 8, 2_048, chunk) for chunk in (8_192, 1_024))
    assert chunked < whole, "each step of a chunked prefill has idle power of its own"


def test_the_break_even_is_where_one_side_overtakes_the_other() -> None:
    worker = Worker(load_model("llama-3.3-70b"), H100, 8)
    told_at = made().break_even_tokens
    assert told_at is not None and 100 < told_at < 4_096
    slower = made(handoff=Handoff(Route(CATALOGUE.link("100gbe")), Mode.PULL))
    hidden = made(handoff=Handoff(Route(CATALOGUE.link("400gbe")), Mode.LAYERWISE))
    assert slower.break_even_tokens is not None and hidden.break_even_tokens is not None
    assert hidden.break_even_tokens <= told_at <= slower.break_even_tokens
    assert worker.stall_s(told_at, 0, made().batch, 4_224, 8_192) > 0


@given(st.integers(1, 50_000), st.integers(1, 60_000))
def test_the_first_length_is_found_exactly(first: int, longest: int) -> None:
    found = break_even(1, lambda n: float(n >= first), lambda n: 0.5, 0.0, longest)
    assert found == (first if first <= longest else None)
    assert longest_unnoticed(lambda n: float(n >= first), 0.5, longest) == min(first - 1, longest)


def test_what_cannot_be_is_said() -> None:
    too_large = run("--model", "llama-3.1-405b", "--accelerator", "h100-sxm")
    assert too_large.exit_code == 1 and "does not fit" in too_large.stdout
    too_slow = run(*LLAMA, "--slo-itl", "0.1")
    assert too_slow.exit_code == 1 and "none" in too_slow.stdout
    late = run(*LLAMA, "--slo-ttft", "1")
    assert late.exit_code == 1 and "promised 1.00 ms" in late.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--model", "llama-3.3-7b", "--accelerator", "h100-sxm"), "the nearest is 'llama-3.3-70b'"),
        (("--model", "llama-3.3-70b", "--accelerator", "h100"), "the nearest is 'h100-sxm'"),
        (("--model", "kimi-k3", "--accelerator", "h100-sxm"), "only its KV cache is known"),
        (("--model", "llama-3.3-70b", "--accelerator", "a100-80-sxm", "--dtype", "fp8"), "no matrix units for fp8"),
        (("--model", "/nowhere/config.json", "--accelerator", "h100-sxm"), "/nowhere/config.json"),
        ((*LLAMA, "--link", "token-ring"), "the nearest is"),
        ((*LLAMA, "--kv-dtype", "int3"), "not known"),
    ],
)
def test_what_cannot_be_used(options: tuple[str, ...], problem: str) -> None:
    result = run(*options)
    assert result.exit_code == 2 and problem in result.output


def test_a_config_json_is_a_model_as_well(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    }))  # fmt: skip
    options = ("--accelerator", "h100-sxm")
    assert told("--model", str(path), *options) == told("--model", "llama-3.1-8b", *options)


@pytest.mark.parametrize("name", names())
def test_every_model_of_the_catalogue_can_be_planned_or_says_why_not(name: str) -> None:
    if load_model(name).weights is None:
        with pytest.raises(ConfigError):
            made(name)
        return
    figures = made(name)
    assert figures.prefill_s > 0 and figures.itl_alone_s > 0 and 0 < figures.exposed_s <= figures.wire_s


def test_nothing_of_the_server_is_imported() -> None:
    """Envoy's and gRPC's parts take longer to load than a plan to make."""
    code = (
        "import sys; sys.argv = ['x', 'plan', '--model', 'llama-3.1-8b', '--accelerator', 'h100-sxm']\n"
        "from eluvix_extproc.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('grpc', 'envoy_data_plane', 'aiohttp', 'pydantic')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
