"""Typed reads from a config.json, where one thing has several names and null means not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eluvix_extproc.errors import ConfigError


class Fields:
    """One object of a config.json. A field of the wrong type is a ConfigError that names it."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        return default if value is None else bool(value)

    def text(self, *names: str) -> str:
        """The first of `names` that is a string, else ""."""
        return next((value for name in names if isinstance(value := self._values.get(name), str)), "")

    def integer(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is set. Without any: `default`, or a ConfigError when that is None.

        Zero is taken only where there is a default, so that what must be there is at least one.
        """
        for name in names:
            value = self._values.get(name)
            if value is None or value == "auto":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < (default is None):
                raise ConfigError([f"config.json: {name} is {value!r}, not a usable number"])
            return value
        if default is None:
            raise ConfigError([f"config.json: {' or '.join(names)} is missing"])
        return default

    def listed(self, *names: str) -> Sequence[object] | None:
        """The first of `names` that is a list with something in it."""
        return next((value for name in names if isinstance(value := self._values.get(name), list) and value), None)

    def objects(self, name: str) -> list[Fields]:
        """A list of objects; empty when there is none."""
        values = self.listed(name) or ()
        if not all(isinstance(value, Mapping) for value in values):
            raise ConfigError([f"config.json: {name} is not a list of objects"])
        return [Fields(value) for value in values if isinstance(value, Mapping)]

    def nested(self, name: str) -> Fields | None:
        value = self._values.get(name)
        return Fields(value) if isinstance(value, Mapping) else None
