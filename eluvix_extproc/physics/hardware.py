"""Accelerators and the links between them, by name.

`hardware.yaml` has the figures and where they come from; a file of the same shape adds to it or replaces its entries.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from eluvix_extproc.errors import ConfigError

T = TypeVar("T")

GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Dense peak rates: `flops_per_s` by dtype (`bf16`, `fp8`, `fp4`), memory in bytes per second and bytes."""

    name: str
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    memory_bytes: float

    def peak(self, dtype: str) -> float:
        """FLOP/s for matrices of that dtype. Raises ConfigError where the accelerator has no such units."""
        if dtype not in self.flops_per_s:
            known = ", ".join(self.flops_per_s)
            raise ConfigError([f"{self.name} has no matrix units for {dtype}; it has {known}"])
        return self.flops_per_s[dtype]

    def ridge(self, dtype: str) -> float:
        """FLOP per byte from which work is bound by computation (Williams et al., CACM 52(4), 2009)."""
        return self.peak(dtype) / self.memory_bytes_per_s


@dataclass(frozen=True, slots=True)
class Link:
    """One network interface: bytes per second on the line, and what a transfer sees of them."""

    name: str
    line_bytes_per_s: float
    usable_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Hardware:
    accelerators: Mapping[str, Accelerator]
    links: Mapping[str, Link]

    def accelerator(self, name: str) -> Accelerator:
        """Raises ConfigError that names the nearest for an unknown one."""
        return _find(self.accelerators, name, "accelerator")

    def link(self, name: str) -> Link:
        """A link by name, or a number of usable GB/s such as `46.6GBps`. Raises ConfigError."""
        number = name.lower().removesuffix("gbps") if name.lower().endswith("gbps") else ""
        if number and name not in self.links:
            try:
                rate = float(number) * GIGA
            except ValueError:
                rate = 0.0
            if not 0 < rate < float("inf"):
                raise ConfigError([f"link {name!r}: write usable gigabytes per second, such as 46.6GBps"])
            return Link(name, rate, rate)
        return _find(self.links, name, "link")


def load(override: Path | None = None) -> Hardware:
    """The package's catalogue, with the entries of `override` added or put in their places. Raises ConfigError."""
    text = files("eluvix_extproc.physics").joinpath("hardware.yaml").read_text(encoding="utf-8")
    accelerators, links = _read(text, "hardware.yaml")
    if override is not None:
        try:
            own = override.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError([f"{override}: {problem}"]) from None
        more_accelerators, more_links = _read(own, str(override))
        accelerators, links = {**accelerators, **more_accelerators}, {**links, **more_links}
    return Hardware(accelerators, links)


def _read(text: str, origin: str) -> tuple[dict[str, Accelerator], dict[str, Link]]:
    import yaml

    try:
        document = yaml.safe_load(text)
        accelerators = {name: _accelerator(name, entry) for name, entry in (document.get("accelerators") or {}).items()}
        links = {name: _link(name, entry) for name, entry in (document.get("links") or {}).items()}
    except yaml.YAMLError as problem:
        raise ConfigError([f"{origin}: {problem}"]) from None
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        shape = "{accelerators: {NAME: {tflops: {bf16: N}, memoryTBps: N, memoryGB: N}}, links: {NAME: {lineGBps: N}}}"
        raise ConfigError([f"{origin}: not of the shape {shape} ({problem!r})"]) from None
    return accelerators, links


def _accelerator(name: str, entry: Mapping[str, Any]) -> Accelerator:
    return Accelerator(
        str(name),
        {str(dtype): _positive(rate) * TERA for dtype, rate in entry["tflops"].items()},
        _positive(entry["memoryTBps"]) * TERA,
        _positive(entry["memoryGB"]) * GIGA,
    )


def _link(name: str, entry: Mapping[str, Any]) -> Link:
    line = _positive(entry["lineGBps"]) * GIGA
    return Link(str(name), line, _positive(entry["usableGBps"]) * GIGA if "usableGBps" in entry else line)


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError(f"{value} is not a positive number")
    return number


def _find(known: Mapping[str, T], name: str, kind: str) -> T:
    if name in known:
        return known[name]
    nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
    raise ConfigError([f"{kind} {name!r} is not in the catalogue{hint}"])
