"""The verbs `validate` and `schema`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import click

from eluvix_extproc.config.docs import schema as json_schema
from eluvix_extproc.config.load import ConfigUnreadable, decode, load, parse
from eluvix_extproc.config.models import ModelSettings, PoolSettings, Settings
from eluvix_extproc.core.fleet import Role
from eluvix_extproc.errors import ConfigError


@click.command()
@click.option("--config", "config", required=True, metavar="FILE", help="YAML configuration; - is standard input.")
def validate(config: str) -> None:
    """Check a configuration and the files that it names. Exit 0: good; 1: it has problems; 2: it cannot be read.

    ELUVIX_ variables of the environment count, as they do for `serve`.
    """
    try:
        settings = _settings(config)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        raise SystemExit(2 if isinstance(error, ConfigUnreadable) else 1) from None
    click.echo(f"{config}: good")
    for label, text in _summary(settings):
        click.echo(f"  {label:10} {text}")


@click.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _settings(config: str) -> Settings:
    if config != "-":
        return load(config, os.environ, files=True)
    raw = sys.stdin.buffer.read()
    return parse(decode(raw, "<stdin>"), "<stdin>", os.environ, files=True)


def _summary(settings: Settings) -> Iterator[tuple[str, str]]:
    yield "server", ", ".join(settings.server.listen.endpoints(settings.server.processes))
    for pool in settings.pools:
        yield "pool", _pool(pool)
    for model in settings.models:
        yield "model", _model(model)
    if not settings.models:
        yield "model", "any name, tokens by estimate"
    yield "isolation", _isolation(settings)


def _pool(pool: PoolSettings) -> str:
    workers = pool.workers
    source = f"dns {workers.dns}" if workers.dns is not None else f"static, workers: {len(workers.static or ())}"
    return f"{pool.name}: role {pool.role.value}, cluster {pool.cluster}, {source}"


def _model(model: ModelSettings) -> str:
    tokenizer = model.tokenizer
    if tokenizer.estimate is not None:
        count = f"estimate of {tokenizer.estimate.bytes_per_token:g} bytes a token"
    else:
        count = f"tokens by {tokenizer.file or f'tiktoken {tokenizer.tiktoken}'}"
    return f"{', '.join(model.names())}: {count}"


def _isolation(settings: Settings) -> str:
    policy = settings.switchyard
    if len(settings.pools) == 1:
        return "none, the only pool takes all"
    if not any(pool.role in (Role.PREFILL, Role.CONDUCTOR) for pool in settings.pools):
        return "none, no pool has the role prefill or disaggregated-conductor"
    return f"from {policy.prefill_isolation_threshold_tokens} {policy.prefill_isolation_basis} tokens"
