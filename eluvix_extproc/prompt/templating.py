"""What goes to the chat template besides the messages: tools and arguments."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.allowance import Allowance, covered


def read_tools(raw: Raw, left: Allowance | None) -> tuple[bytes, bytes, Any]:
    """(what is hashed of `tools`, their JSON, their value); the latter two are b"" and None where they were not
    decoded (see `allowance.py`), so that no template gets them. Raises MalformedBody."""
    sent = fields.present(raw)
    if not sent:
        return b"", b"", None
    if not covered(left, sent):
        return sent, b"", None
    value = fields.decode_value(sent, "tools")
    return fields.canonical(value, "tools"), sent, value


def template_kwargs(
    given: Raw, reasoning_effort: Any, documents: Raw = fields.ABSENT, left: Allowance | None = None
) -> bytes:
    """`chat_template_kwargs` with what engines add to them from other members, as JSON.

    As vLLM does (ChatCompletionRequest.build_chat_params): an effort also switches thinking on or off, where the
    client did not say so itself.
    """
    sent, listed_raw = fields.present(given), fields.present(documents)
    if not covered(left, sent) or not covered(left, listed_raw):
        return b""
    kwargs: Any = fields.lenient(sent) if sent else {}
    if not isinstance(kwargs, dict):
        return sent
    if reasoning_effort not in (None, "auto"):
        kwargs.setdefault("enable_thinking", reasoning_effort != "none")
        kwargs["reasoning_effort"] = reasoning_effort
    if listed_raw and (listed := fields.lenient(listed_raw)) is not None:
        kwargs["documents"] = listed
    # As sent: templates may print whole objects.
    return msgspec.json.encode(kwargs) if kwargs else b""
