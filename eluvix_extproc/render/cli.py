"""`eluvix-extproc render`: print or write configuration for Envoy and Istio."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from eluvix_extproc.config.load import decode, load, parse
from eluvix_extproc.config.models import Settings
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.render.bootstrap import render
from eluvix_extproc.render.istio import render_istio
from eluvix_extproc.render.istio_target import IstioTarget
from eluvix_extproc.render.plan import Profile
from eluvix_extproc.render.sidecar import TLS_FOLDER

_UNUSABLE_INPUT = 2
_ISTIO = "istio"


@click.command("render")
@click.argument("what", type=click.Choice([*(profile.value for profile in Profile), _ISTIO]))
@click.option("--config", required=True, metavar="FILE", help="Configuration file; - is standard input.")
@click.option("--output", type=click.Path(), help="File to write; for istio a folder. Default: standard output.")
@click.option(
    "--tls-folder",
    default=TLS_FOLDER,
    show_default=True,
    help="With server.tls: where Envoy finds ca.crt, and tls.crt and tls.key for mutual TLS.",
)
@click.option("--namespace", default="llm", show_default=True, help="istio: where the sidecar runs.")
@click.option("--gateway", default="istio-system/llm-gateway", show_default=True, help="istio: the Gateway.")
@click.option("--gateway-label", default="istio=ingressgateway", show_default=True, help="istio: label of its pods.")
@click.option("--host", "hosts", multiple=True, default=("*",), show_default=True, help="istio: host that it serves.")
@click.option("--image", default="eluvix-extproc:0.1.0", show_default=True, help="istio: the sidecar's image.")
def render_command(
    what: str,
    config: str,
    output: str | None,
    tls_folder: str,
    namespace: str,
    gateway: str,
    gateway_label: str,
    hosts: tuple[str, ...],
    image: str,
) -> None:
    """Print a complete, commented configuration made from FILE: a bootstrap for Envoy (hybrid, full-duplex or
    buffered), or manifests for an existing Istio gateway."""
    try:
        settings = _settings(config)
        if what == _ISTIO:
            target = IstioTarget(
                namespace=namespace,
                gateway="/".join(_pair(gateway, "/", "--gateway")),
                gateway_label=_pair(gateway_label, "=", "--gateway-label"),
                hosts=hosts,
                image=image,
            )
            _write_istio(render_istio(settings, target), output)
        else:
            _write(render(what, settings, tls_folder), output)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        raise SystemExit(_UNUSABLE_INPUT) from None
    except OSError as error:
        click.echo(f"{error.filename}: {error.strerror}", err=True)
        raise SystemExit(_UNUSABLE_INPUT) from None


def _settings(config: str) -> Settings:
    if config == "-":
        return parse(decode(sys.stdin.buffer.read(), "<stdin>"), "<stdin>", os.environ)
    return load(config, os.environ)


def _write(text: str, output: str | None) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        Path(output).write_text(text, encoding="utf-8")


def _write_istio(manifests: dict[str, str], output: str | None) -> None:
    if output is None:
        click.echo("\n".join(manifests.values()), nl=False)
        return
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in manifests.items():
        (folder / name).write_text(text, encoding="utf-8")


def _pair(text: str, separator: str, option: str) -> tuple[str, str]:
    left, found, right = text.partition(separator)
    if not (left and found and right):
        raise click.BadParameter(f"must have the form a{separator}b", param_hint=option)
    return left, right
