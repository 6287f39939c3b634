"""What the request formats share: decoding with the errors a client is told, and fields read leniently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from eluvix_extproc.errors import MalformedBody

# What a member of no interest to the prompt is decoded as: never a container, which could be of any size.
Scalar = str | int | float | bool | None
V = TypeVar("V")
R = TypeVar("R", bound="Request[Any]")

ABSENT = Raw(b"")
NULL: Any = None
_ANY = msgspec.json.Decoder()
_SCALAR = msgspec.json.Decoder(Scalar)
_SETTINGS = msgspec.json.Decoder(dict[str, Raw])
_CANONICAL = msgspec.json.Encoder(order="sorted")
_BOM = b"\xef\xbb\xbf"
# The strings that pydantic, and so every engine, reads as true.
_TRUE = frozenset({"1", "true", "t", "on", "y", "yes"})


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: Scalar = None


_STREAM_OPTIONS = msgspec.json.Decoder(_StreamOptions)


class Request(msgspec.Struct, Generic[V], gc=False):
    """Members that several request formats have; None is null or absent.

    V is what a member's value is decoded as: `Scalar`, or `Raw`, which cannot fail to decode whatever the client put
    there. The members from `kv_transfer_params` on are read only to know that they are there: see `core/reserved.py`.
    """

    model: V = NULL
    stream: V = NULL
    stream_options: Raw = ABSENT
    max_tokens: V = NULL
    n: V = NULL
    cache_salt: V = NULL
    prompt_cache_key: V = NULL
    user: V = NULL
    truncate_prompt_tokens: Raw = ABSENT
    kv_transfer_params: Raw = ABSENT
    ec_transfer_params: Raw = ABSENT
    bootstrap_host: Raw = ABSENT
    bootstrap_port: Raw = ABSENT
    bootstrap_room: Raw = ABSENT
    bootstrap_pair_key: Raw = ABSENT
    decode_tp_size: Raw = ABSENT
    kv_router_hint: Raw = ABSENT
    http_worker_ipc: Raw = ABSENT
    encoder_urls: Raw = ABSENT
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
            and self.bootstrap_pair_key is ABSENT
            and self.decode_tp_size is ABSENT
            and self.kv_router_hint is ABSENT
            and self.http_worker_ipc is ABSENT
            and self.encoder_urls is ABSENT
            and self.disagg_prefill_dp_rank is ABSENT
            and self.data_parallel_rank is ABSENT
            and self.routed_dp_rank is ABSENT
            and self.vllm_xargs is ABSENT
            and self.extra_args is ABSENT
            and self.sampling_params is ABSENT
        )


class Body(Generic[R]):
    """Decodes one request format, given as its Request of Scalars and its Request of Raws."""

    def __init__(self, values: type[R], raws: type[R]) -> None:
        self._plain: Callable[[bytes], R] = msgspec.json.Decoder(values).decode
        self._careful: Callable[[bytes], R] = msgspec.json.Decoder(raws).decode
        self._lenient = [f.name for f in msgspec.structs.fields(values) if f.type == Scalar and f.name != "model"]

    def decode(self, body: bytes) -> R:
        """The body's members. Raises MalformedBody, naming the member when one has the wrong type."""
        try:
            members = self._plain(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            members = self._decode_carefully(body)
        if members.model is not None and type(members.model) is not str:
            raise MalformedBody("Invalid type for 'model': expected a string.", "model")
        return members

    def _decode_carefully(self, body: bytes) -> R:
        """The fault may be in a member whose faults are the engine's to answer: then it counts as absent."""
        if body.startswith(_BOM):
            body = body[len(_BOM) :]     # engines accept it
        try:
            members = self._careful(body)
        except msgspec.ValidationError as error:
            detail, _, path = str(error).partition(" - at `$.")
            param = path.rstrip("`") or None
            raise MalformedBody(f"Invalid value for '{param}': {detail}." if param else f"{detail}.", param) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedBody(f"The body is not valid JSON: {error}.") from None
        except RecursionError:
            raise MalformedBody("The body is nested too deeply.") from None
        if members.model is not None:
            members.model = decode_value(members.model, "model") if is_text(members.model) else 0
        for name in self._lenient:
            setattr(members, name, scalar(getattr(members, name)))
        return members


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


def truthy(value: Any) -> bool:
    """A boolean the way engines read one; null is none."""
    return value.lower() in _TRUE if isinstance(value, str) else value is True or (type(value) is int and value == 1)


def whole(value: Any) -> int | None:
    """A whole number of at least 1, else None."""
    return value if type(value) is int and value >= 1 else None


def text(value: Any) -> str:
    """The value where it is a text, else none."""
    return value if type(value) is str else ""


def include_usage(stream_options: Raw) -> bool:
    try:
        return truthy(_STREAM_OPTIONS.decode(stream_options).include_usage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def setting(raw: Raw, name: str) -> Any:
    """A scalar of an object of settings; None when either is absent, unreadable or of another type."""
    try:
        return scalar(_SETTINGS.decode(raw).get(name)) if raw is not ABSENT else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def scalar(raw: Raw | None) -> Any:
    """The value, or None when it is none or cannot be read: for fields whose faults are the engine's to answer."""
    try:
        return None if raw is None else _SCALAR.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def has_member(raw: Raw, name: str) -> bool:
    """Whether it is an object that has a member of that name."""
    try:
        return name in _SETTINGS.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def is_text(raw: Raw) -> bool:
    return bytes(raw).startswith(b'"')


def lenient(raw: bytes | Raw) -> Any:
    """As `scalar`, for a value of any type."""
    try:
        return _ANY.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
