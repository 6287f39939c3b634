import os
from pathlib import Path

from eluvix_extproc.config.models import Settings
from eluvix_extproc.config.watch import FileWatch, redacted


def write(path: Path, text: str, at: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(at, at))


def test_a_change_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    write(file, "a", 1)
    watch = FileWatch(file)
    assert not watch.changed()
    write(file, "b", 2)
    assert watch.changed()
    assert not watch.changed()


def test_a_file_that_comes_and_goes_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    watch = FileWatch(file)
    assert not watch.changed()
    write(file, "a", 1)
    assert watch.changed()
    file.unlink()
    assert watch.changed()
    assert not watch.changed()


def test_a_replaced_file_has_changed_though_it_looks_the_same(tmp_path: Path) -> None:
    file, other = tmp_path / "c.yaml", tmp_path / "new"
    write(file, "a", 1)
    watch = FileWatch(file)
    write(other, "b", 1)
    other.rename(file)
    assert watch.changed()


def test_the_swap_of_a_config_map_is_seen(tmp_path: Path) -> None:
    for name in ("..1", "..2"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "c.yaml", "a", 1)
    data, file = tmp_path / "..data", tmp_path / "c.yaml"
    data.symlink_to("..1")
    file.symlink_to("..data/c.yaml")
    watch = FileWatch(file)
    swap = tmp_path / "..tmp"
    swap.symlink_to("..2")
    swap.rename(data)
    assert watch.changed()


def test_other_files_are_watched_too_until_they_are_named_no_more(tmp_path: Path) -> None:
    file, one, two = tmp_path / "c.yaml", tmp_path / "1", tmp_path / "2"
    for path in (file, one, two):
        write(path, "a", 1)
    watch = FileWatch(file)
    watch.also([one])
    write(one, "b", 2)
    watch.also([one, two])
    assert watch.changed(), "a change between two namings is not lost"
    watch.also([two])
    write(one, "c", 3)
    assert not watch.changed()
    write(two, "b", 2)
    assert watch.changed()


def test_credentials_in_urls_are_not_shown() -> None:
    pool = {"name": "a", "role": "decode", "cluster": "redis://user:pw@host/1", "workers": {"dns": "h:1"}}
    shown = redacted(Settings.model_validate({"pools": [pool], "server": {"tls": {"cert": "/c", "key": "/k"}}}))
    assert shown["pools"][0]["cluster"] == "redis://host/1"
    assert shown["server"]["tls"] == {"cert": "/c", "key": "/k"}
    assert shown["server"]["decisionTimeout"] == "2s"
