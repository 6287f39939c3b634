"""OpenAI's `/v1/responses`.

Items are converted to the messages of chat completions just as vLLM 0.32 does it (construct_input_messages in
entrypoints/openai/responses/utils.py), for it is those that its chat template is given: an assistant's reasoning, text
and calls come as items of their own and become one message. What is hashed are the client's own items, without the
ids and states that the server gave them. A `previous_response_id` or a stored `prompt` keeps part of the prompt with
the server: such a request is counted as far as it goes, and never exactly.
"""

from __future__ import annotations

import json
from typing import Any, Generic

import msgspec
from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Message, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.allowance import Allowance, allowance, covered
from eluvix_extproc.prompt.fields import ABSENT, NULL, Scalar, V
from eluvix_extproc.prompt.head import readable
from eluvix_extproc.prompt.messages import canonical_message, converted, one_text, plain_message, undecoded
from eluvix_extproc.prompt.templating import template_kwargs

_GIVEN_BY_THE_SERVER = frozenset({"id", "status"})
_PLAIN = ("user", "system", "developer")
_UNFINISHED = ("in_progress", "incomplete")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ITEMS = msgspec.json.Decoder(list[Raw])
# A custom tool is shown to the model as a function of one string.
_ONE_STRING = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}


class _Body(fields.Request[V], Generic[V], gc=False):
    input: Raw = ABSENT
    instructions: V = NULL
    tools: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    reasoning: Raw = ABSENT
    max_output_tokens: V = NULL
    previous_response_id: Raw = ABSENT
    previous_input_messages: Raw = ABSENT
    prompt: Raw = ABSENT
    truncation: V = NULL
    conversation: Raw = ABSENT


_BODY: fields.Body[_Body[Any]] = fields.Body(_Body[Scalar], _Body[Raw])


def parse(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`."""
    members = _BODY.decode(body if complete else readable(body, "input", "instructions"))
    raw = fields.present(members.input)
    remembered = any(
        map(
            fields.present,
            (members.previous_response_id, members.previous_input_messages, members.prompt, members.conversation),
        )
    )
    if complete and not raw and not remembered:
        raise MalformedBody("Missing required parameter: 'input'.", "input")
    left = allowance(body)
    items = _Items(complete, left)
    items.instruct(members.instructions)
    items.read(raw)
    tools, tools_raw = _tools(fields.present(members.tools), left)
    return Prompt(
        api=Api.OPENAI_RESPONSES,
        model=members.model or "",
        stream=fields.truthy(members.stream),
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        messages=items.messages(),
        tools=tools,
        tools_raw=tools_raw,
        template_kwargs=template_kwargs(
            members.chat_template_kwargs, fields.setting(members.reasoning, "effort"), left=left
        ),
        add_generation_prompt=not items.unfinished,
        continue_final_message=items.unfinished,
        salt=fields.text(members.cache_salt),
        include_usage=True,
        max_tokens=fields.whole(members.max_output_tokens),
        reserved=members.may_hold_reserved(),
        elsewhere=remembered
        or items.unknown
        or bool(fields.present(members.truncate_prompt_tokens))
        or members.truncation not in (None, "disabled")
        or (bool(tools) and not tools_raw)
        or not covered(left, b""),
        cache_key=fields.text(members.prompt_cache_key),
        user=fields.text(members.user),
    )


class _Items:
    """Makes messages of items. `unknown`: there is one that we do not know how an engine shows; `unfinished`: the
    assistant's last one is to be gone on with."""

    def __init__(self, complete: bool, left: Allowance | None) -> None:
        self._complete = complete
        self._left = left
        self._chats: list[tuple[dict[str, Any], list[dict[str, Any]]] | Message] = []
        self.unknown = False
        self.unfinished = False

    def instruct(self, instructions: Any) -> None:
        if isinstance(instructions, str) and instructions:
            system = {"role": "system", "content": instructions}
            self._chats.append((system, [system]))

    def read(self, raw: bytes) -> None:
        """The member `input`. Raises MalformedBody."""
        if not raw:
            return
        if raw.startswith(b'"'):
            user = {"role": "user", "content": fields.decode_value(raw, "input")}
            self._chats.append((user, [user]))
            return
        if not raw.startswith(b"["):
            raise MalformedBody("Invalid type for 'input': expected a string or an array.", "input")
        for at, each in enumerate(_ITEMS.decode(raw)):
            where = f"input[{at}]"
            if not covered(self._left, bytes(each)):
                self._chats.append(undecoded(bytes(each)))
                continue
            item = fields.decode_value(each, where)
            if type(item) is not dict:
                raise MalformedBody(f"Invalid type for '{where}': expected an object.", where)
            if len(item) == 2 and item.get("role") in _PLAIN and type(item.get("content")) is str:
                self._chats.append(plain_message(item["role"], item["content"], bytes(each)))
                self.unfinished = False
            else:
                self._add(item, where)

    def messages(self) -> tuple[Message, ...]:
        return tuple([chat if isinstance(chat, Message) else _hashed(*chat) for chat in self._chats])

    def _add(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        self.unfinished = kind in ("message", "reasoning") and item.get("status") in _UNFINISHED
        self.unknown = self.unknown or bool(item.get("encrypted_content"))
        role = item.get("role")
        if kind in _CALLS:
            call = {"id": item.get("call_id"), "type": "function", "function": _function(item)}
            last = self._last_assistant()
            if last is None:
                self._chats.append(({"role": "assistant", "tool_calls": [call]}, [item]))
            else:
                last[0].setdefault("tool_calls", []).append(call)
                last[1].append(item)
        elif kind == "reasoning":
            self._say("reasoning", _first_text(item.get("content")) or _first_text(item.get("summary")) or "", item)
        elif kind in _OUTPUTS:
            tool = {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
            self._chats.append((tool, [item]))
        elif type(role) is not str:
            if kind in ("message", None) and self._complete:
                raise MalformedBody(f"Invalid type for '{where}.role': expected a string.", f"{where}.role")
            # A kind of item that is new to us, or was cut off: part of the key, and counted by its text.
            self.unknown = True
            self._chats.append(({"role": "", "content": fields.canonical(item, "input").decode()}, [item]))
        elif role == "assistant" and (text := _said(item.get("content"))) is not None:
            self._say("content", text, item)
        else:
            shown = {name: value for name, value in item.items() if name not in _GIVEN_BY_THE_SERVER}
            self._chats.append((shown, [item]))

    def _say(self, member: str, text: str, item: dict[str, Any]) -> None:
        last = self._last_assistant()
        if last is not None and last[0].get(member) is None:
            last[0][member] = text
            last[1].append(item)
        else:
            self._chats.append(({"role": "assistant", member: text}, [item]))

    def _last_assistant(self) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        last = self._chats[-1] if self._chats else None
        return last if isinstance(last, tuple) and last[0]["role"] == "assistant" else None


def _hashed(chat: dict[str, Any], sources: list[dict[str, Any]]) -> Message:
    bare = [
        {name: value for name, value in source.items() if value is not None and name not in _GIVEN_BY_THE_SERVER}
        for source in sources
    ]
    if len(bare) == 1 and "content" in bare[0]:
        content = one_text(bare[0].pop("content"))
        if bare[0].get("type") == "message":    # it may be left out
            del bare[0]["type"]
        canonical = canonical_message(content, bare[0])
    else:
        canonical = canonical_message(bare, {"role": chat["role"]})
    return converted(chat["role"], canonical, chat)


def _function(item: dict[str, Any]) -> dict[str, Any]:
    name = item.get("name")
    if item["type"] == "custom_tool_call":
        return {"name": name, "arguments": json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)}
    if item.get("namespace"):
        name = f"{item['namespace']}__{name}"
    return {"name": name, "arguments": item.get("arguments")}


def _said(content: Any) -> str | None:
    return content if isinstance(content, str) else _first_text(content)


def _first_text(parts: Any) -> str | None:
    """Engines take no more of an assistant's own parts."""
    first = parts[0] if isinstance(parts, list) and parts else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else None


def _tools(raw: bytes, left: Allowance | None) -> tuple[bytes, bytes]:
    """(what is hashed, what the template is given: b"" where that is not known)."""
    if raw and not covered(left, raw):
        return raw, b""
    listed = fields.decode_value(raw, "tools") if raw else []
    if not isinstance(listed, list):
        raise MalformedBody("Invalid type for 'tools': expected an array.", "tools")
    tools = [tool for tool in listed if isinstance(tool, dict)]
    shown: list[dict[str, Any]] = []
    for tool in tools:
        if tool.get("type") == "function":
            shown.append(_chat_tool(tool, tool.get("name")))
        elif tool.get("type") == "custom":
            shown.append(_chat_tool({**tool, "parameters": _ONE_STRING, "strict": None}, tool.get("name")))
        elif tool.get("type") == "namespace":
            inner = tool.get("tools")
            shown += [
                _chat_tool(each, f"{tool.get('name')}__{each.get('name')}")
                for each in (inner if isinstance(inner, list) else ())
                if isinstance(each, dict) and each.get("type") == "function"
            ]
        else:    # what an engine's own tools add to a prompt is its own business
            return fields.canonical(tools, "tools"), b""
    return fields.canonical(tools, "tools") if tools else b"", msgspec.json.encode(shown) if shown else b""


def _chat_tool(tool: dict[str, Any], name: Any) -> dict[str, Any]:
    function = {"name": name, "description": tool.get("description"), "parameters": tool.get("parameters")}
    function |= {member: tool[member] for member in ("strict", "defer_loading") if tool.get(member) is not None}
    return {"type": "function", "function": function}
