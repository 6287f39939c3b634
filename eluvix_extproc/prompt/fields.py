"""What the request formats share: decoding with the errors a client is told, and fields read leniently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from eluvix_extproc.errors import MalformedBody

T = TypeVar("T")

ABSENT = Raw(b"")
_ANY = msgspec.json.Decoder()
_CANONICAL = msgspec.json.Encoder(order="sorted")
_BOM = b"\xef\xbb\xbf"
# The strings that pydantic, and so every engine, reads as true.
_TRUE = frozenset({"1", "true", "t", "on", "y", "yes"})


class Request(msgspec.Struct, gc=False):
    """Members that both request formats have; Raw ones cannot fail to decode, whatever the client put there.

    The members from `kv_transfer_params` on are read only to know that they are there: see `core/reserved.py`.
    """

    model: Raw = ABSENT
    stream: Raw = ABSENT
    stream_options: Raw = ABSENT
    max_tokens: Raw = ABSENT
    n: Raw = ABSENT
    cache_salt: Raw = ABSENT
    kv_transfer_params: Raw = ABSENT
    ec_transfer_params: Raw = ABSENT
    bootstrap_host: Raw = ABSENT
    bootstrap_port: Raw = ABSENT
    bootstrap_room: Raw = ABSENT
    disagg_prefill_dp_rank: Raw = ABSENT
    data_parallel_rank: Raw = ABSENT
    routed_dp_rank: Raw = ABSENT
    vllm_xargs: Raw = ABSENT
    extra_args: Raw = ABSENT
    sampling_params: Raw = ABSENT

    def may_hold_reserved(self) -> bool:
        """Whether `reserved.strip` could find anything: a Raw object is ABSENT itself unless it was decoded."""
        return not (
            self.kv_transfer_params is ABSENT
            and self.ec_transfer_params is ABSENT
            and self.bootstrap_host is ABSENT
            and self.bootstrap_port is ABSENT
            and self.bootstrap_room is ABSENT
            and self.disagg_prefill_dp_rank is ABSENT
            and self.data_parallel_rank is ABSENT
            and self.routed_dp_rank is ABSENT
            and self.vllm_xargs is ABSENT
            and self.extra_args is ABSENT
            and self.sampling_params is ABSENT
        )


def decode(decoder: Callable[[bytes], T], body: bytes) -> T:
    """The body's members. Raises MalformedBody, naming the member when one has the wrong type."""
    if body.startswith(_BOM):
        body = body[len(_BOM) :]     # engines accept it
    try:
        return decoder(body)
    except msgspec.ValidationError as error:
        detail, _, path = str(error).partition(" - at `$.")
        param = path.rstrip("`") or None
        raise MalformedBody(f"Invalid value for '{param}': {detail}." if param else f"{detail}.", param) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBody(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise MalformedBody("The body is nested too deeply.") from None


def decode_value(raw: bytes | Raw, param: str) -> Any:
    """One member's value as Python objects. Raises MalformedBody for `param`."""
    try:
        return _ANY.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedBody(f"Invalid value for '{param}': {error}.", param) from None
    except RecursionError:
        raise MalformedBody(f"'{param}' is nested too deeply.", param) from None


def canonical(value: Any, param: str) -> bytes:
    """JSON without whitespace and with sorted keys: equal for equal values, different for different ones."""
    try:
        return _CANONICAL.encode(value)
    except RecursionError:
        raise MalformedBody(f"'{param}' is nested too deeply.", param) from None


def present(raw: Raw) -> bytes:
    """The member's JSON as sent; b"" when it is absent or null."""
    if raw is ABSENT:
        return b""
    text = bytes(raw)
    return b"" if text == b"null" else text


def model_of(raw: Raw) -> str:
    """"" when it is absent: an engine that serves one model does not ask for its name."""
    return string(raw, "model") if present(raw) else ""


def string(raw: Raw, param: str) -> str:
    """A member that must be a string. Raises MalformedBody when it is not, or is absent."""
    if not present(raw):
        raise MalformedBody(f"Missing required parameter: '{param}'.", param)
    value = decode_value(raw, param)
    if not isinstance(value, str):
        raise MalformedBody(f"Invalid type for '{param}': expected a string.", param)
    return value


def lenient(raw: Raw) -> Any:
    """The value, or None when it cannot be read: for fields whose faults are the engine's to answer."""
    if raw is ABSENT:
        return None
    try:
        return _ANY.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def lenient_str(raw: Raw) -> str:
    value = lenient(raw)
    return value if isinstance(value, str) else ""


def lenient_bool(raw: Raw, default: bool = False) -> bool:
    value = lenient(raw)
    return default if value is None else truthy(value)


def truthy(value: Any) -> bool:
    """A boolean the way engines read one."""
    return value.lower() in _TRUE if isinstance(value, str) else value is True or (type(value) is int and value == 1)


def lenient_int(raw: Raw) -> int | None:
    """A whole number of at least 1, else None."""
    value = lenient(raw)
    return value if type(value) is int and value >= 1 else None


def include_usage(stream_options: Raw) -> bool:
    options = lenient(stream_options)
    return isinstance(options, dict) and truthy(options.get("include_usage"))
