"""`eluvix-extproc render`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from eluvix_extproc.config.load import load, parse
from eluvix_extproc.config.models import Settings
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.render.bootstrap import render
from eluvix_extproc.render.plan import Profile
from eluvix_extproc.render.sidecar import TLS_FOLDER

_UNUSABLE_INPUT = 2


@click.command("render")
@click.argument("what", type=click.Choice([profile.value for profile in Profile]))
@click.option("--config", "config", required=True, metavar="FILE", help="Configuration file; - is standard input.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write here instead of to standard output.")
@click.option(
    "--tls-folder",
    default=TLS_FOLDER,
    show_default=True,
    help="Where Envoy finds ca.crt (tls.crt and tls.key for mutual TLS) when server.tls is set.",
)
def render_command(what: str, config: str, output: str | None, tls_folder: str) -> None:
    """Print a complete, commented Envoy configuration for a configuration of ours."""
    try:
        text = render(what, _settings(config), tls_folder)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        raise SystemExit(_UNUSABLE_INPUT) from None
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        click.echo(f"{output}: {error.strerror}", err=True)
        raise SystemExit(_UNUSABLE_INPUT) from None


def _settings(config: str) -> Settings:
    if config == "-":
        return parse(sys.stdin.read(), "standard input", os.environ)
    return load(config, os.environ)
