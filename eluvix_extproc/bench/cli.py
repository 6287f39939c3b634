"""`eluvix-extproc bench`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from eluvix_extproc.bench.gateway import (
    ALONE,
    ECHO,
    ECHO_WATCHING,
    H2_ECHO,
    H2_ECHO_WATCHING,
    SIDECAR,
    SIDECAR_WATCHING,
    Gateway,
)
from eluvix_extproc.bench.inprocess import inprocess_table, measure_inprocess
from eluvix_extproc.bench.load import Load
from eluvix_extproc.bench.memory import measure_memory
from eluvix_extproc.bench.report import Run, as_json, as_table
from eluvix_extproc.bench.rounds import measure, scenarios
from eluvix_extproc.bench.turns import measure_turns, turns_table
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.sim.processes import EnvoyMissing, NotReady

_ROUNDS, _QUICK_ROUNDS = 5, 2
_QUICK_SCALE = 0.2


@click.command()
@click.option("--profile", type=click.Choice(["hybrid", "full-duplex"]), default="hybrid", show_default=True,
              help="Body mode that Envoy is told to use.")  # fmt: skip
@click.option("--tokenizer", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Count exactly with this tokenizer.json. By default tokens are estimated.")  # fmt: skip
@click.option("--transport", type=click.Choice(["grpcio", "h2"]),
              help="What the sidecar speaks gRPC with: server.transport.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 50), help=f"How often everything is measured.  [default: {_ROUNDS}]")
@click.option("--quick", is_flag=True, help=f"{_QUICK_ROUNDS} rounds of fewer requests: half a minute.")
@click.option("--echo", is_flag=True, help="Only the CPU of the sidecar beside the echoes'.")
@click.option("--only", metavar="TEXT", help="Only scenarios whose name contains TEXT, such as '1 KB'.")
@click.option("--inprocess", is_flag=True, help="Only our own code, by part, without gRPC and Envoy.")
@click.option("--json", "json_file", metavar="FILE", help="Write the figures as JSON; - is standard output.")
def bench(
    profile: str,
    tokenizer: str | None,
    transport: str | None,
    rounds: int | None,
    quick: bool,
    echo: bool,
    only: str | None,
    inprocess: bool,
    json_file: str | None,
) -> None:
    """Measure what the sidecar costs: real Envoy alone, with the sidecar, and with a bare gRPC echo, by turns.

    Exit code 1 means that requests failed or were not steered, so that the figures are worth nothing; 2 that nothing
    could be measured.
    """
    count = rounds or (_QUICK_ROUNDS if quick else _ROUNDS)
    tokenizer = str(Path(tokenizer).resolve()) if tokenizer else None
    try:
        if inprocess:
            _print(*_in_process(tokenizer, count), json_file)
            return
        report = _through_envoy(profile, tokenizer, transport, count, _QUICK_SCALE if quick else 1.0, echo, only)
    except (EnvoyMissing, NotReady) as error:
        raise _Unusable(str(error)) from None
    except ConfigError as error:
        raise _Unusable("; ".join(error.problems)) from None
    _print(report, as_table(report), json_file)
    if report["failures"] or report["unsteered"] or report["failed_streams"]:
        raise SystemExit(1)


def _in_process(tokenizer: str | None, rounds: int) -> tuple[dict[str, Any], str]:
    figures = measure_inprocess(tokenizer, rounds)
    report, table = {"inprocess_cpu_us": figures}, inprocess_table(figures)
    turns = measure_turns(tokenizer, rounds)
    if turns is not None:
        report, table = {**report, "turns_cpu_us": turns}, f"{table}\n\n{turns_table(turns)}"
    return report, table


def _through_envoy(
    profile: str,
    tokenizer: str | None,
    transport: str | None,
    rounds: int,
    scale: float,
    echo: bool,
    only: str | None,
) -> dict[str, Any]:
    plan = [each for each in scenarios(scale) if not only or only in each.name]
    if not plan:
        raise click.UsageError(f"no scenario has {only!r} in its name")
    ways: tuple[str, ...] = (SIDECAR, ECHO, H2_ECHO, SIDECAR_WATCHING, ECHO_WATCHING, H2_ECHO_WATCHING)
    if not echo:
        ways = (ALONE, *ways)
    try:
        with Gateway(profile, ways, tokenizer=tokenizer, transport=transport) as gateway, Load() as load:
            results = measure(gateway, load, plan, rounds, _progress)
        memory = None
        if not echo and not only:
            _progress("memory")
            memory = measure_memory(profile, tokenizer)
    finally:
        _progress("")
    return as_json(Run(profile, "exact" if tokenizer else "estimate", rounds, plan, results, memory))


def _print(report: dict[str, Any], table: str, json_file: str | None) -> None:
    text = json.dumps(report, indent=2)
    if json_file == "-":
        click.echo(text)
        return
    click.echo(table)
    if json_file:
        Path(json_file).write_text(text + "\n", encoding="utf-8")


class _Unusable(click.ClickException):
    exit_code = 2


def _progress(text: str) -> None:
    """One line on a terminal, overwritten; nothing in a log."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", nl=False, err=True)
