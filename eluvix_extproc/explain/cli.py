"""The `explain` verb."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from eluvix_extproc.config.load import decode, load, parse
from eluvix_extproc.config.models import Settings
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.explain.explanation import Request, fleet_of
from eluvix_extproc.explain.explanation import explain as explain_request
from eluvix_extproc.explain.view import as_json, as_text

T = TypeVar("T")


@click.command()
@click.option("--config", "config", required=True, metavar="FILE", help="YAML configuration; - is standard input.")
@click.option("--body", required=True, metavar="FILE", help="The request's body; - is standard input.")
@click.option("--path", default="/v1/chat/completions", show_default=True, help="The request's path.")
@click.option("--header", "headers", multiple=True, metavar="K=V", help="A request header; may be repeated.")
@click.option("--in-flight", "in_flight", multiple=True, metavar="ADDR=N", help="Suppose N requests on a worker.")
@click.option("--cached", "cached", multiple=True, metavar="ADDR=N", help="Suppose that a worker holds N tokens of it.")
@click.option("--served-by", multiple=True, metavar="ADDR", help="Suppose that a worker served this session last.")
@click.option("--json", "as_data", is_flag=True, help="Print JSON.")
def explain(
    config: str,
    body: str,
    path: str,
    headers: tuple[str, ...],
    in_flight: tuple[str, ...],
    cached: tuple[str, ...],
    served_by: tuple[str, ...],
    as_data: bool,
) -> None:
    """Show what would be done with one request, and why: tokens, prefix key, block hashes, the Switchyard's reasons.

    Nothing is asked and nothing is sent: all workers of the configuration count as ready, idle and cold unless
    --in-flight, --cached and --served-by say otherwise, and a DNS name stands for one worker. Exit 0: it would be
    steered; 1: it would be refused or go on unrouted; 2: the input cannot be used.
    """
    if config == body == "-":
        raise click.UsageError("--config and --body cannot both be standard input")
    try:
        settings = _settings(config)
        request = Request(
            {":path": path, **_pairs("--header", headers, str)},
            _read(body),
            _pairs("--in-flight", in_flight, _whole),
            _pairs("--cached", cached, _whole),
            frozenset(address.strip().lower() for address in served_by),
        )
        _refuse_strangers(settings, {*request.in_flight, *request.cached, *request.served_by})
        found = explain_request(settings, request)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        raise SystemExit(2) from None
    except OSError as error:
        click.echo(f"{body}: {error.strerror}", err=True)
        raise SystemExit(2) from None
    if as_data:
        click.echo(json.dumps(as_json(found, settings), indent=2, ensure_ascii=False))
    else:
        for line in as_text(found, settings):
            click.echo(line)
    raise SystemExit(0 if found.decision is not None else 1)


def _settings(config: str) -> Settings:
    if config != "-":
        return load(config, os.environ, files=True)
    return parse(decode(sys.stdin.buffer.read(), "<stdin>"), "<stdin>", os.environ, files=True)


def _read(body: str) -> bytes:
    return sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()


def _refuse_strangers(settings: Settings, supposed: set[str]) -> None:
    known = [worker.address for pool in fleet_of(settings).pools for worker in pool.workers]
    for address in sorted(supposed.difference(known)):
        raise click.UsageError(f"{address} is none of the workers: {', '.join(known)}")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _pairs(option: str, given: tuple[str, ...], read: Callable[[str], T]) -> dict[str, T]:
    """Names in lower case, as Envoy has them; addresses have no others."""
    found: dict[str, T] = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"{option} {pair!r}: write NAME=VALUE")
        try:
            found[name.strip().lower()] = read(value.strip())
        except ValueError as error:
            raise click.UsageError(f"{option} {pair!r}: {error}") from None
    return found
