"""Real Envoy as a judge of configurations."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.processes import envoy_binary


def assert_valid(text: str, folder: Path) -> None:
    """`envoy --mode validate` accepts the configuration; its own words are the failure's message."""
    file = folder / "envoy.yaml"
    file.write_text(text)
    result = subprocess.run(
        [envoy_binary(), "--mode", "validate", "-c", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
