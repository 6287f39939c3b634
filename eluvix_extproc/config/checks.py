"""What no single key can tell: whether the sections agree, and whether the named files are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import PydanticCustomError

from eluvix_extproc.config.values import Listen
from eluvix_extproc.core.fleet import Role

if TYPE_CHECKING:
    from eluvix_extproc.config.models import Settings

At = tuple[str | int, ...]

DISAGREEMENT = "sections_disagree"


class Problem(NamedTuple):
    """`at` is the way to the key in YAML's names, e.g. ("pools", 0, "cluster")."""

    at: At
    message: str


def disagreements(settings: Settings) -> list[Problem]:
    return [
        *_server(settings),
        *_models(settings),
        *_pools(settings),
        *_roles(settings),
        *_envoy(settings),
    ]


def raise_disagreements(settings: Settings) -> None:
    """One pydantic error that carries all of them in its context, because a validator cannot name another key."""
    problems = disagreements(settings)
    if problems:
        text = "; ".join(f"{dotted(problem.at)}: {problem.message}" for problem in problems)
        raise PydanticCustomError(DISAGREEMENT, "{text}", {"text": text, "problems": problems})


def referenced_files(settings: Settings) -> list[tuple[At, str]]:
    """Every file that the configuration names, with the key that names it."""
    found: list[tuple[At, str | None]] = []
    if (tls := settings.server.tls) is not None:
        at: At = ("server", "tls")
        found += [((*at, "cert"), tls.cert), ((*at, "key"), tls.key), ((*at, "clientCa"), tls.client_ca)]
    for n, model in enumerate(settings.models):
        at = ("models", n, "tokenizer")
        found += [((*at, "file"), model.tokenizer.file), ((*at, "chatTemplate"), model.tokenizer.chat_template)]
        if model.architecture is not None and not isinstance(model.architecture, str):
            found.append((("models", n, "architecture", "config"), model.architecture.config))
    return [(at, name) for at, name in found if name is not None]


def check_files(settings: Settings) -> list[Problem]:
    """Named files that are not there or cannot be read. Touches the disk; parsing does not."""
    problems = []
    for at, name in referenced_files(settings):
        try:
            found = Path(name)
            if found.exists() and not found.is_file():
                raise ValueError("is not a regular file")    # a device or a pipe may have no end
            with found.open("rb") as file:
                file.read(1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            problems.append(Problem(at, f"{name}: {reason}"))
    return problems


def dotted(at: Iterable[str | int]) -> str:
    """`pools[0].cluster`; the top is `configuration`."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "configuration"


def _server(settings: Settings) -> Iterator[Problem]:
    server, admin = settings.server, settings.admin.listen
    if server.max_held_bytes > server.max_body_bytes:
        yield Problem(
            ("server", "maxHeldBytes"),
            f"{server.max_held_bytes} is more than maxBodyBytes ({server.max_body_bytes})",
        )
    fits = True
    for section, listen in (("server", server.listen), ("admin", admin)):
        if not listen.unix and server.processes > 1 and not 0 < listen.port <= 65_536 - server.processes:
            fits = False
            yield Problem(
                (section, "listen"),
                f"port {listen.port} leaves no ports for {server.processes} processes (they take N, N+1, …)",
            )
    if fits and _meet(server.listen, admin, server.processes):
        yield Problem(("admin", "listen"), f"{admin} overlaps with what server.listen takes")


def _meet(one: Listen, other: Listen, processes: int) -> bool:
    """Whether two of their endpoints are the same. Two ports that the system chooses never are."""
    if one.unix or other.unix:
        return bool(set(one.endpoints(processes)) & set(other.endpoints(processes)))
    same_host = one.host == other.host or one.wildcard or other.wildcard
    return same_host and one.port != 0 != other.port and abs(one.port - other.port) < processes


def _models(settings: Settings) -> Iterator[Problem]:
    owner: dict[str, str] = {}
    for n, model in enumerate(settings.models):
        for name in model.names():
            if name in owner:
                key = "name" if name == model.name else "served" if name in model.served else "adapters"
                yield Problem(("models", n, key), f"{name!r} already means model {owner[name]!r}")
            owner.setdefault(name, model.name)
        for name in model.adapters:
            if name == model.name or name in model.served:
                yield Problem(("models", n, "adapters"), f"{name!r} is the model itself, not an adapter")


def _pools(settings: Settings) -> Iterator[Problem]:
    for key in ("name", "cluster"):
        first: dict[str, int] = {}
        for n, pool in enumerate(settings.pools):
            value = getattr(pool, key)
            if value in first:
                yield Problem(("pools", n, key), f"{value!r} is already the {key} of pools[{first[value]}]")
            first.setdefault(value, n)
    place: dict[str, str] = {}
    for n, pool in enumerate(settings.pools):
        addresses = [pool.workers.dns] if pool.workers.dns is not None else list(pool.workers.static or ())
        way = "dns" if pool.workers.dns is not None else "static"
        for i, address in enumerate(addresses):
            at: At = ("pools", n, "workers", way) + ((i,) if way == "static" else ())
            if address in place:
                yield Problem(at, f"{address} is already a worker of pool {place[address]!r}")
            place.setdefault(address, pool.name)


def _roles(settings: Settings) -> Iterator[Problem]:
    roles = {pool.role for pool in settings.pools}
    wanted = settings.switchyard.prefill_isolation_route
    if wanted != "auto" and wanted not in roles:
        yield Problem(("switchyard", "prefillIsolationRoute"), f"no pool has the role {wanted}")
    if len(settings.pools) > 1 and roles == {Role.PREFILL}:
        yield Problem(
            ("pools",), "all have the role prefill: interactive requests need a pool with role decode or colocated"
        )


def _envoy(settings: Settings) -> Iterator[Problem]:
    wanted = settings.envoy.default_pool
    if wanted is not None and wanted not in {pool.name for pool in settings.pools}:
        yield Problem(("envoy", "defaultPool"), f"no pool is named {wanted!r}")
