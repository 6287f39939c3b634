"""The `plan` verb."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics import catalogue, hardware
from eluvix_extproc.physics.phases import Efficiency, Worker
from eluvix_extproc.physics.transfer import Mode, Route
from eluvix_extproc.plan.figures import Handoff, Load
from eluvix_extproc.plan.figures import plan as make_plan
from eluvix_extproc.plan.view import as_text

_POSITIVE = click.IntRange(min=1)
_DTYPES = ["bf16", "fp8", "fp4"]
_MODES = [mode.value for mode in Mode]
_SHARE = click.FloatRange(min=0, max=1, min_open=True)


@click.command()
@click.option("--model", required=True, metavar="NAME|FILE", help="A name of the catalogue, or a config.json.")
@click.option("--accelerator", required=True, metavar="NAME", help="Such as h100-sxm, h200-sxm, b200-sxm, mi300x.")
@click.option("--tp", type=_POSITIVE, default=1, show_default=True, help="Accelerators of one worker.")
@click.option("--dtype", type=click.Choice(_DTYPES), default="bf16", show_default=True, help="Of weights.")
@click.option("--kv-dtype", default="bf16", show_default=True, metavar="DTYPE", help="Of the KV cache.")
@click.option("--prompt", type=_POSITIVE, default=4096, show_default=True, help="Tokens of a prompt.")
@click.option("--cached", type=click.IntRange(min=0), default=0, show_default=True, help="Of these in cache already.")
@click.option("--output", type=_POSITIVE, default=256, show_default=True, help="Tokens of an answer.")
@click.option("--rate", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Requests per second.")
@click.option("--slo-ttft", type=click.FloatRange(min=0), metavar="MS", help="Promised time to first token.")
@click.option("--slo-itl", type=click.FloatRange(min=0), metavar="MS", help="Promised time between tokens.")
@click.option("--link", default="400gbe", show_default=True, metavar="NAME|GBps", help="Such as 200gbe or 46.6GBps.")
@click.option("--interfaces", type=_POSITIVE, default=1, show_default=True, help="Links side by side.")
@click.option("--latency-us", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Of a message.")
@click.option("--transfer", "mode", type=click.Choice(_MODES), default="pull", show_default=True, help="When KV moves.")
@click.option("--chunk", type=_POSITIVE, default=8192, show_default=True, help="Tokens of one prefill step.")
@click.option("--leg-ms", type=click.FloatRange(min=0), default=3.0, show_default=True, help="Cost of the extra leg.")
@click.option("--mfu", type=_SHARE, default=0.45, show_default=True, help="Share of the FLOP peak in a prefill.")
@click.option("--mbu", type=_SHARE, default=0.7, show_default=True, help="Share of the bandwidth in a decode step.")
@click.option("--hardware", "own", type=click.Path(path_type=Path), metavar="FILE", help="More accelerators and links.")
@click.option("--config", metavar="FILE", help="A configuration, to compare its isolation threshold.")
@click.option("--json", "as_data", is_flag=True, help="Print JSON.")
def plan(
    model: str, accelerator: str, tp: int, dtype: str, kv_dtype: str, prompt: int, cached: int, output: int,
    rate: float, slo_ttft: float | None, slo_itl: float | None, link: str, interfaces: int, latency_us: float,
    mode: str, chunk: int, leg_ms: float, mfu: float, mbu: float, own: Path | None, config: str | None, as_data: bool,
) -> None:  # fmt: skip
    """Size a fleet: ridge and intensities, KV cache and its way over the wire, workers by role, and the break-even from
    which isolating a prefill pays. Nothing is measured: each figure names what it assumes.

    Exit 0: a plan; 1: the model does not fit, or a promise cannot be kept; 2: the input cannot be used.
    """
    try:
        known = hardware.load(own)
        worker = Worker(
            _model(model), known.accelerator(accelerator), tp, dtype, kv_dtype, Efficiency(compute=mfu, memory=mbu)
        )
        route = Route(known.link(link), interfaces, latency_us / 1e6)
        handoff = Handoff(route, Mode(mode), chunk, leg_ms / 1e3)
        load = Load(prompt, cached, output, rate, _seconds(slo_ttft), _seconds(slo_itl))
        made = make_plan(worker, load, handoff)
        threshold = _threshold(config)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        raise SystemExit(2) from None
    if as_data:
        click.echo(json.dumps({**made.as_json(), "configured_threshold_tokens": threshold}, indent=2))
    else:
        for line in as_text(worker, load, handoff, made, threshold):
            click.echo(line)
    kept = made.batch > 0 and (load.slo_ttft_s is None or made.ttft_isolated_s <= load.slo_ttft_s)
    raise SystemExit(0 if kept else 1)


def _model(name: str) -> catalogue.Model:
    return catalogue.load_model_file(Path(name)) if name.endswith(".json") else catalogue.load_model(name)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _threshold(config: str | None) -> int | None:
    if config is None:
        return None
    from eluvix_extproc.config.load import load

    return load(config, os.environ, files=False).switchyard.prefill_isolation_threshold_tokens
