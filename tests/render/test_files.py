from __future__ import annotations

from pathlib import Path

import pytest

from eluvix_extproc.render.files import BOOTSTRAPS, rendered_files
from tests.render.real_envoy import assert_valid

FOLDER = Path(__file__).parents[2] / "envoy"


def test_the_kept_files_are_what_render_writes_today() -> None:
    for name, text in rendered_files(FOLDER).items():
        assert (FOLDER / name).read_text() == text, f"{name}: run `python -m eluvix_extproc.render.files`"


@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_real_envoy_accepts_each_kept_file(name: str, tmp_path: Path) -> None:
    assert_valid((FOLDER / name).read_text(), tmp_path)
