"""The scalars of the configuration that are more than a string: durations, listen addresses, worker addresses."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, ValidationInfo
from pydantic import WithJsonSchema as JsonSchema

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,24})?)(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_LONGEST = Decimal(86_400)
_HOST_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")


def parse_duration(value: Any) -> float:
    """`500ms`, `2s`, `1.5m`, `1h` as seconds; 1 ms to 24 h. ValueError for anything else, bare numbers included."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"a duration needs its unit, e.g. {value}s, {value}ms or {value}m")
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a duration such as 500ms, 2s, 5m or 1h")
    seconds = Decimal(match[1]) * _SECONDS[match[2]]
    if not _SECONDS["ms"] <= seconds <= _LONGEST:
        raise ValueError("must be between 1ms and 24h")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """The shortest of `Ns` and `Nms` that reads back to the same float."""
    exact = Decimal(repr(seconds))
    millis = exact * 1000
    if exact != exact.to_integral_value() and millis == millis.to_integral_value():
        return f"{millis.to_integral_value():f}ms"
    return f"{exact.to_integral_value() if exact == exact.to_integral_value() else exact:f}s"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where something listens: an IP literal and a port (0 lets the system choose), or a Unix socket's path."""

    host: str = ""
    port: int = 0
    unix: str = ""

    @classmethod
    def parse(cls, text: str) -> Listen:
        """`0.0.0.0:50051`, `[::]:50051`, `localhost:50051` or `unix:/run/eluvix/extproc.sock`; else ValueError."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/") or path.endswith("/") or "\0" in path:
                raise ValueError("a Unix socket is written unix:/absolute/path.sock")
            if len(path.encode()) > 100:
                raise ValueError("a Unix socket's path may be 100 bytes long at most")
            return cls(unix=path)
        host, port = split_host_port(text)
        host = "127.0.0.1" if host == "localhost" else host
        try:
            return cls(host=str(ipaddress.ip_address(host)), port=port)
        except ValueError:
            raise ValueError(f"listens on an IP address and port or unix:/path, {host!r} is no IP address") from None

    @property
    def wildcard(self) -> bool:
        return not self.unix and ipaddress.ip_address(self.host).is_unspecified

    def endpoints(self, processes: int = 1) -> tuple[str, ...]:
        """One per process, as gRPC and this configuration spell them: ports N, N+1, …; or for sockets
        `extproc.sock` with one process, else `extproc-0.sock`, `extproc-1.sock`, …"""
        if not self.unix:
            return tuple(join_host_port(self.host, self.port + n) for n in range(processes))
        if processes == 1:
            return (f"unix:{self.unix}",)
        path = Path(self.unix)
        return tuple(f"unix:{path.with_name(f'{path.stem}-{n}{path.suffix}')}" for n in range(processes))

    def __str__(self) -> str:
        return self.endpoints()[0]


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`, the brackets taken off; ValueError says what is missing."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _PORT.fullmatch(port) or int(port) > 65_535:
        raise ValueError("must be host:port with a port up to 65535")
    if host.startswith("[") and host.endswith("]"):
        return str(_ipv6(host[1:-1])), int(port)
    if ":" in host:
        raise ValueError("an IPv6 address goes in brackets, as in [::1]:8000")
    return host, int(port)


def worker_address(text: str) -> str:
    """`ip:port` in its one canonical spelling, because the address identifies the worker; else ValueError."""
    host, port = split_host_port(text)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError("a worker is an IP address and port, as 10.0.0.1:8000 (a name goes in workers.dns)") from None
    if address.is_unspecified or not port:
        raise ValueError("is not an address that one can connect to")
    return join_host_port(str(address), port)


def dns_target(text: str) -> str:
    """`name:port`, in lower case; else ValueError."""
    host, port = split_host_port(text)
    if not port:
        raise ValueError("port 0 is not one that one can connect to")
    return f"{host_name(host)}:{port}"


def host_name(text: str) -> str:
    name = text.rstrip(".").lower()
    if len(name) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(f"{text!r} is no host name")
    return name


def host(text: str) -> str:
    """An IP literal (without brackets) or a host name."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return host_name(text)


def tcp_only(value: Listen) -> Listen:
    if value.unix:
        raise ValueError("must be ip:port")
    return value


def _ipv6(text: str) -> ipaddress.IPv6Address:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IPv6 address") from None
    if address.scope_id:
        raise ValueError("an IPv6 address with a zone cannot be told to Envoy")
    return address


def _listen(value: Any) -> Listen:
    if isinstance(value, Listen):
        return value
    if not isinstance(value, str):
        raise ValueError("must be ip:port or unix:/path")
    return Listen.parse(value)


def _beside_the_file(value: str, info: ValidationInfo) -> str:
    base = info.context.get("base") if isinstance(info.context, dict) else None
    return value if base is None else str(Path(base, value))


DURATION_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,24})?(ms|s|m|h)$"
_TCP = r"^.+:[0-9]{1,5}$"
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    JsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
ListenAddress = Annotated[
    Listen,
    PlainValidator(_listen),
    PlainSerializer(str, return_type=str),
    JsonSchema({"type": "string", "pattern": rf"^unix:/.+$|{_TCP}"}),
]
TcpAddress = Annotated[ListenAddress, AfterValidator(tcp_only), JsonSchema({"type": "string", "pattern": _TCP})]
WorkerAddress = Annotated[str, AfterValidator(worker_address)]
DnsTarget = Annotated[str, AfterValidator(dns_target)]
Host = Annotated[str, AfterValidator(host)]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_CLUSTER = r"^[!-~]{1,256}$"
_MODEL = r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]{0,254}[^\s\x00-\x1f\x7f])?$"
_FILE = r"^[^\x00]+$"
_HTTP_PATH = r"^/[!-~]*$"
# What a pattern asks for, in words.
PATTERNS = {
    _NAME: "letters, digits, '.', '_' and '-', 63 at most",
    _CLUSTER: "1 to 256 visible ASCII characters",
    _MODEL: "1 to 256 characters without control characters or spaces at the ends",
    _FILE: "a file's name",
    _HTTP_PATH: "an HTTP path that begins with /",
}
# Relative to the configuration file's folder, made absolute at load.
FilePath = Annotated[str, Field(pattern=_FILE), AfterValidator(_beside_the_file)]
# Becomes metric labels and log fields.
Name = Annotated[str, Field(pattern=_NAME)]
# Becomes a header's value. Wide enough for the clusters of Istio (outbound|8000||svc) and Envoy Gateway (a/b/rule/0).
ClusterName = Annotated[str, Field(pattern=_CLUSTER)]
ModelName = Annotated[str, Field(pattern=_MODEL)]
HttpPath = Annotated[str, Field(pattern=_HTTP_PATH)]


def _check_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


# Credentials never leave Envoy (see `render`), so none of them can name anything here.
_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})


def _check_header(value: str) -> str:
    if value in _CREDENTIALS:
        raise ValueError(f"{value} is a credential, which the sidecar is never sent")
    return value


Pattern = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_check_pattern)]
HeaderName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,127}$"), AfterValidator(_check_header)]
