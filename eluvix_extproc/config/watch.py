"""Has a file of the configuration changed since it was last looked at? By stat, without a thread."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eluvix_extproc.config.models import Settings

# Path after symlinks, inode, modification time, size; None where there is no file.
_Stamp = tuple[str, int, int, int] | None

_USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")


class FileWatch:
    """Make it before the file is read, so that a change in between is seen.

    A ConfigMap is mounted as symlinks that are swapped together: the stamp is of the file they lead to.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._stamps: dict[str, _Stamp] = {self._path: _stamp(self._path)}

    def also(self, paths: Iterable[str | Path]) -> None:
        """Watch these too, in place of the ones named before; what is already watched keeps its stamp."""
        wanted = [self._path, *map(str, paths)]
        self._stamps = {path: self._stamps[path] if path in self._stamps else _stamp(path) for path in wanted}

    def changed(self) -> bool:
        """True once for each change since the last call, a file's coming and going included."""
        now = {path: _stamp(path) for path in self._stamps}
        changed = now != self._stamps
        self._stamps = now
        return changed


def redacted(settings: Settings) -> dict[str, Any]:
    """The configuration in YAML's names for `/config`, without what a URL may hold of credentials."""
    shown = _without_userinfo(settings.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert isinstance(shown, dict)
    return shown


def _without_userinfo(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_userinfo(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_userinfo(item) for item in value]
    return _USERINFO.sub("", value) if isinstance(value, str) else value


def _stamp(path: str) -> _Stamp:
    try:
        real = os.path.realpath(path)
        found = Path(real).stat()
    except (OSError, ValueError):
        return None
    return real, found.st_ino, found.st_mtime_ns, found.st_size
