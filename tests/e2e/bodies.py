"""Random requests in every format, for what must hold of any."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from tests.support.stack import MODEL

_text = st.text(max_size=60) | st.sampled_from(["word " * 40, "ਪੰਜਾਬੀ 漢字 🦉", "def f(x):\n    return x\n", "  \n\t  "])
_said = _text.filter(lambda text: bool(text.strip()))
_ids = st.lists(st.integers(0, 500), min_size=1, max_size=300)
_object = st.dictionaries(st.text(max_size=5), st.integers() | _text, max_size=3)


@st.composite
def _turns(draw: st.DrawFn) -> list[tuple[str, str]]:
    count = draw(st.integers(1, 5))
    return [(("user", "assistant")[at % 2], draw(_said)) for at in range(count)]


def _content(draw: st.DrawFn, text: str, kind: str = "text") -> Any:
    """A text, or what means the same as parts."""
    if draw(st.booleans()):
        return text
    cut = draw(st.integers(0, len(text)))
    return [{"type": kind, "text": part} for part in (text[:cut], text[cut:]) if part]


@st.composite
def _chat(draw: st.DrawFn) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": role, "content": _content(draw, said)} for role, said in draw(_turns())]
    if draw(st.booleans()):
        messages.insert(0, {"role": "system", "content": draw(_said)})
    if draw(st.booleans()):
        function = {"name": "look", "arguments": json.dumps(draw(_object))}
        call = {"id": "call-1", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "call-1", "content": draw(_text)})
    tool = {"type": "function", "function": {"name": "look", "parameters": draw(_object)}}
    return {"messages": messages, "max_tokens": 2, **({"tools": [tool]} if draw(st.booleans()) else {})}


@st.composite
def _messages(draw: st.DrawFn) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": role, "content": _content(draw, said)} for role, said in draw(_turns())]
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["system"] = _content(draw, draw(_said))
    if draw(st.booleans()):
        use = {"type": "tool_use", "id": "call-1", "name": "look", "input": draw(_object)}
        messages.append({"role": "assistant", "content": [use]})
        result = {"type": "tool_result", "tool_use_id": "call-1", "content": draw(_said)}
        messages.append({"role": "user", "content": [result, {"type": "text", "text": draw(_said)}]})
    if draw(st.booleans()):
        more["tools"] = [{"name": "look", "input_schema": {"type": "object", "properties": draw(_object)}}]
    return {"messages": messages, **more}


@st.composite
def _responses(draw: st.DrawFn) -> dict[str, Any]:
    more = {"instructions": draw(_said)} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        return {"input": draw(_said), "max_output_tokens": 2, **more}
    items: list[dict[str, Any]] = [
        {"role": role, "content": _content(draw, said, "input_text" if role == "user" else "output_text")}
        for role, said in draw(_turns())
    ]
    if draw(st.booleans()):
        call = {"type": "function_call", "call_id": "call-1", "name": "look", "arguments": json.dumps(draw(_object))}
        items += [call, {"type": "function_call_output", "call_id": "call-1", "output": draw(_said)}]
    return {"input": items, "max_output_tokens": 2, **more}


_prompts = _said | st.lists(_said, min_size=1, max_size=3) | _ids | st.lists(_ids, min_size=1, max_size=3)
_sglang = st.fixed_dictionaries({"text": _said | st.lists(_said, min_size=2, max_size=3)}) | st.fixed_dictionaries(
    {"input_ids": _ids | st.lists(_ids, min_size=2, max_size=3)}
)
_FORMATS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "/v1/chat/completions": _chat(),
    "/v1/completions": _prompts.map(lambda prompt: {"prompt": prompt, "max_tokens": 2}),
    "/v1/responses": _responses(),
    "/v1/messages": _messages().map(lambda body: {**body, "max_tokens": 2}),
    "/v1/messages/count_tokens": _messages(),
    "/inference/v1/generate": _ids.map(lambda ids: {"token_ids": ids, "sampling_params": {"max_tokens": 2}}),
    "/generate": _sglang.map(lambda body: {**body, "sampling_params": {"max_new_tokens": 2}}),
    "/v1/embeddings": _prompts.map(lambda prompt: {"input": prompt}),
    "/rerank": st.fixed_dictionaries({"query": _said, "documents": st.lists(_said, min_size=1, max_size=3)}),
}
_STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate")


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, list[bytes]]:
    """(path, body, the same body in any number of pieces)."""
    path = draw(st.sampled_from(sorted(_FORMATS)))
    members = {**draw(_FORMATS[path]), "model": MODEL}
    if path in _STREAMED and draw(st.booleans()):
        members["stream"] = True
    names = draw(st.permutations(sorted(members)))
    body = json.dumps(
        {name: members[name] for name in names},
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
    ).encode()
    # None is empty: Envoy ends an HTTP/2 connection on which empty frames follow each other.
    cuts = [0, *sorted(draw(st.sets(st.integers(1, len(body) - 1), max_size=12))), len(body)]
    return path, body, [body[start:end] for start, end in pairwise(cuts)]
