"""The rendered files that the repository keeps in `envoy/`, and the configurations that they come from.

`python -m eluvix_extproc.render.files [FOLDER]` writes them anew; a test finds any that are out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from eluvix_extproc.config.load import load
from eluvix_extproc.render.bootstrap import render
from eluvix_extproc.render.istio import render_istio
from eluvix_extproc.render.istio_target import IstioTarget
from eluvix_extproc.render.plan import Profile

BOOTSTRAPS = {
    "hybrid.yaml": (Profile.HYBRID, "example.yaml"),
    "full-duplex.yaml": (Profile.FULL_DUPLEX, "example.yaml"),
    "buffered.yaml": (Profile.BUFFERED, "example.yaml"),
    "uds.yaml": (Profile.HYBRID, "example-uds.yaml"),
    "compose.yaml": (Profile.HYBRID, "compose-config.yaml"),
}
ISTIO = "istio/example.yaml"


def rendered_files(folder: Path) -> dict[str, str]:
    """Text by path below `folder`, which holds the configurations. The environment has no say in these."""
    files = {name: render(profile, load(folder / config, {})) for name, (profile, config) in BOOTSTRAPS.items()}
    manifests = render_istio(load(folder / ISTIO, {}), IstioTarget())
    return files | {f"istio/{name}": text for name, text in manifests.items()}


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "envoy")
    for name, text in rendered_files(folder).items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
