"""`eluvix-extproc healthcheck`: asks /readyz of a running sidecar, for container health checks and scripts.

It runs every few seconds in a container that has better things to do, so it imports the standard library and click
only; `--config` pays for the configuration's models.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys

import click

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@click.command()
@click.option(
    "--address", metavar="ADDRESS", help="ip:port, http://ip:port or unix:/path of the admin server.  [127.0.0.1:9090]"
)
@click.option("--config", metavar="FILE", help="Take the admin addresses, one a process, from this configuration.")
@click.option("--timeout", default=2.0, show_default=True, metavar="SECONDS", help="Time for each answer.")
def healthcheck(address: str | None, config: str | None, timeout: float) -> None:
    """Say whether the sidecar is ready: exit 0 when it is, 1 when it is not or does not answer."""
    if address is not None and config is not None:
        raise click.UsageError("give --address or --config, not both")
    addresses = [address or "127.0.0.1:9090"] if config is None else _configured(config)
    good = True
    for each in addresses:
        ready, text = ask(each, timeout)
        good = good and ready
        click.echo(f"{each}: {text}", err=not ready)
    sys.exit(0 if good else 1)


def ask(address: str, timeout: float) -> tuple[bool, str]:
    """Whether the sidecar at `address` is ready, and its reason or warning in words."""
    connection = _connection(address, timeout)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read(65_536)
    except (OSError, http.client.HTTPException) as error:
        return False, f"does not answer ({error or type(error).__name__})"
    finally:
        connection.close()
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("ready"), bool):
        return False, f"is not a sidecar's admin address (status {response.status})"
    if not answer["ready"] or response.status != 200:
        return False, f"not ready: {answer.get('reason', response.status)}"
    return True, f"ready, but {answer['warning']}" if "warning" in answer else "ready"


def _configured(path: str) -> list[str]:
    from eluvix_extproc.config.load import load
    from eluvix_extproc.errors import ConfigError

    try:
        settings = load(path, os.environ)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    return list(settings.admin.listen.endpoints(settings.server.processes))


def _connection(address: str, timeout: float) -> http.client.HTTPConnection:
    if address.startswith("unix:"):
        return _UnixConnection(address.removeprefix("unix:"), timeout)
    authority = address.removeprefix("http://").rstrip("/")
    host, _, port = authority.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise click.UsageError(f"{address!r} is not ip:port, http://ip:port or unix:/path")
    return http.client.HTTPConnection(_WILDCARDS.get(host, host).strip("[]"), int(port), timeout=timeout)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
