"""The `eluvix-extproc` command: a table of verbs, each imported only when it is called.

Exit codes of every verb: 0 good, 1 the answer is no, 2 unusable input.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click

from eluvix_extproc import __version__


class Verb(NamedTuple):
    """`target` is `module:function` of a click command; `summary` is its line in `--help`, which imports nothing."""

    target: str
    summary: str


VERBS = {
    "serve": Verb("eluvix_extproc.serve:serve", "Serve Envoy's external processing."),
    "validate": Verb("eluvix_extproc.config.cli:validate", "Check a configuration, naming every problem."),
    "explain": Verb("eluvix_extproc.explain.cli:explain", "Show what would be done with one request, and why."),
    "schema": Verb("eluvix_extproc.config.cli:schema", "Print the configuration's JSON schema, for editors."),
    "plan": Verb("eluvix_extproc.plan.cli:plan", "Size a fleet, and find from which length on isolating pays."),
    "render": Verb("eluvix_extproc.render.cli:render_command", "Print an Envoy or Istio configuration."),
    "demo": Verb("eluvix_extproc.sim.demo:demo", "Show it at work: real Envoy, simulated workers, real traffic."),
    "bench": Verb("eluvix_extproc.bench.cli:bench", "Measure what the sidecar costs."),
    "sim-worker": Verb("eluvix_extproc.sim.cli:sim_worker", "Run a simulated engine worker."),
    "healthcheck": Verb("eluvix_extproc.admin.healthcheck:healthcheck", "Ask a running sidecar whether it is ready."),
    "version": Verb("eluvix_extproc.cli:version", "Print the version."),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module, _, function = verb.target.partition(":")
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eluvix-extproc")
def main() -> None:
    """Envoy external-processing sidecar that steers LLM requests by token count and KV-cache prefix."""


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"eluvix-extproc {__version__}")


if __name__ == "__main__":
    main()
