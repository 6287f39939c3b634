"""Reading the captures of a real engine, and the shapes to compare them by."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "data" / "vllm"


def exchange(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(request, response) of a non-streamed capture."""
    capture = json.loads((FOLDER / f"{name}.json").read_text())
    return capture["request"], capture["response"]


def stream(name: str) -> tuple[dict[str, Any], list[str]]:
    """(request body, data of each event in order) of a streamed capture."""
    text = (FOLDER / f"{name}.sse.txt").read_text()
    request, _, answer = text.partition("\n")
    return json.loads(request), re.findall(r"^data: (.*)$", answer, re.MULTILINE)


def events(body: str) -> list[str]:
    """Data of each event in a well-formed stream with LF line ends."""
    assert body.endswith("\n\n")
    parts = body.removesuffix("\n\n").split("\n\n")
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def shape(value: Any) -> Any:
    """Keys in order and types; numbers, texts and identifiers themselves are left out."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return ["list", *[shape(inner) for inner in value]]
    return type(value).__name__


def event_shape(data: str) -> Any:
    return data if data == "[DONE]" else shape(json.loads(data))
