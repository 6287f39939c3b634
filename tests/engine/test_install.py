"""The installer says what a machine lacks, and trusts only what it finished itself."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.engine import install


class Version(NamedTuple):
    major: int
    minor: int


class Disk(NamedTuple):
    free: int


def test_this_machine_runs_the_engine(tmp_path: Path) -> None:
    install.check_machine(tmp_path)


def test_another_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(install.Unable, match="x86_64 and aarch64, this is linux on riscv64"):
        install.check_machine(tmp_path)


def test_another_libc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    with pytest.raises(install.Unable, match="glibc"):
        install.check_machine(tmp_path)


@pytest.mark.parametrize("version", [Version(3, 10), Version(3, 15)])
def test_another_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: Version) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(install.Unable, match=r"Python 3\.11 to 3\.14"):
        install.check_machine(tmp_path)


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(free=10**9))
    with pytest.raises(install.Unable, match=r"1\.0 GB are free"):
        install.check_machine(tmp_path / "engine")


def test_only_what_was_finished_counts_as_installed(tmp_path: Path) -> None:
    assert install.is_installed(install.FOLDER)
    assert not install.is_installed(tmp_path)
    (tmp_path / install.STAMP).write_text("of another version")
    assert not install.is_installed(tmp_path)
    shutil.copy(install.FOLDER / install.STAMP, tmp_path)
    assert install.is_installed(tmp_path)
