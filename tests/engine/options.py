"""Requests with an option or a shape that decides what the engine makes of the prompt, as fields without a model.

`EXACT` are those that we must count exactly, `DECLARED` those of which we have to say that we do not.
"""

from __future__ import annotations

from typing import Any

from tests.engine.requests import TEXT, TOOL

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
USER = [{"role": "user", "content": TEXT}]
TOOLS = [{"type": "function", "function": TOOL}]
FLAT_TOOLS = [{"type": "function", **TOOL}]
ANTHROPIC_TOOLS = [{"name": "weather", "input_schema": TOOL["parameters"]}]
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"p": 1.0, "q": "<é>"}'}}
YES = {"role": "assistant", "content": "Yes, "}


def _texts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _chat(*messages: dict[str, Any], **options: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": list(messages) or USER, "max_tokens": 1, **options}


def _responses(given: Any = TEXT, **options: Any) -> tuple[str, dict[str, Any]]:
    return RESPONSES, {"input": given, "max_output_tokens": 1, **options}


def _messages(*messages: dict[str, Any], **options: Any) -> tuple[str, dict[str, Any]]:
    return MESSAGES, {"messages": list(messages) or USER, "max_tokens": 1, **options}


EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    # ---- chat completions ----
    "no-special-tokens": _chat(add_special_tokens=False),
    "documents": _chat(documents=[{"title": "a", "text": "b"}]),
    "tools": _chat(tools=TOOLS),
    "tools-unused": _chat(tools=TOOLS, tool_choice="none"),
    "tools-required": _chat(tools=TOOLS, tool_choice="required"),
    "tool-named": _chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}}),
    "tools-null": _chat(tools=None),
    "effort-low": _chat(reasoning_effort="low"),
    "effort-none": _chat(reasoning_effort="none"),
    "template-arguments": _chat(chat_template_kwargs={"thinking": True, "enable_thinking": False}),
    "template-arguments-that-are-members": _chat(chat_template_kwargs={"add_generation_prompt": False}),
    "template-arguments-that-are-tools": _chat(chat_template_kwargs={"tools": TOOLS}),
    "template-arguments-that-are-tokens": _chat(chat_template_kwargs={"bos_token": "zz"}),
    "template-arguments-of-the-tokenizer": _chat(chat_template_kwargs={"tokenize": False}),
    "no-generation-prompt": _chat(add_generation_prompt=False),
    "continued": _chat(*USER, YES, add_generation_prompt=False, continue_final_message=True),
    "assistant-last": _chat(*USER, YES),
    "developer": _chat({"role": "developer", "content": "be"}, *USER),
    "developer-after-system": _chat({"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, *USER),
    "system-parts": _chat({"role": "system", "content": _texts("a", "b")}, *USER),
    "parts": _chat({"role": "user", "content": _texts("a", "b")}),
    "no-parts": _chat({"role": "user", "content": []}),
    "empty": _chat({"role": "user", "content": ""}),
    "name": _chat({"role": "user", "name": "Bob", "content": "a"}),
    "calls": _chat(
        *USER, {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "d"}]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "tool", "tool_call_id": "d", "content": _texts("ok", "two")},
    ),
    "call-without-arguments": _chat(
        *USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ),
    "reasoning": _chat(*USER, {**YES, "reasoning": "thought"}),
    "reasoning-content": _chat(*USER, {**YES, "reasoning_content": "thought"}, *USER),
    "thinking-part": _chat(
        *USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, *_texts("x")]}, *USER
    ),
    "refusal-part": _chat(*USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *USER),
    "markers-in-text": _chat({"role": "user", "content": "<|turn|> <｜User｜> <think> <late> <note>"}),
    "unnormalised": _chat({"role": "user", "content": "e\u0301 \u1e9b\u0323 \ufb01 \u212b"}),
    "control-characters": _chat({"role": "user", "content": "\x00\x01 \u200b\ufeff x\ud7ff"}),
    "response-format": _chat(response_format={"type": "json_object"}),
    "samples": _chat(n=2),
    "prompt-logprobs": _chat(prompt_logprobs=1),
    # ---- completions ----
    "echo": (COMPLETIONS, {"prompt": TEXT, "echo": True, "max_tokens": 1}),
    "completion-unnormalised": (COMPLETIONS, {"prompt": "e\u0301 \u1e9b\u0323 \ufb01 \u212b", "max_tokens": 1}),
    "completion-samples-of-ids": (COMPLETIONS, {"prompt": [[1, 2, 3]], "n": 2, "max_tokens": 1}),
    # ---- Responses ----
    "responses-system-and-instructions": _responses([{"role": "system", "content": "s"}, *USER], instructions="be"),
    "responses-developer": _responses([{"role": "developer", "content": "s"}, *USER]),
    "responses-effort-low": _responses(reasoning={"effort": "low"}),
    "responses-effort-none": _responses(reasoning={"effort": "none"}),
    "responses-template-arguments": _responses(chat_template_kwargs={"thinking": True}),
    "responses-format": _responses(text={"format": {"type": "json_object"}}),
    "responses-tools-unused": _responses(tools=FLAT_TOOLS, tool_choice="none"),
    "responses-tools-required": _responses(tools=FLAT_TOOLS, tool_choice="required"),
    "responses-tool-of-a-name": _responses(tools=[{"type": "function", "name": "a"}]),
    "responses-call-first": _responses([
        {"type": "function_call", "call_id": "1", "name": "w", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
    ]),
    "responses-unfinished": _responses([
        *USER,
        {"type": "message", "role": "assistant", "status": "incomplete",
         "content": [{"type": "output_text", "text": "Ye"}]},
    ]),
    "responses-summary": _responses([
        *USER, {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}]}, YES, *USER,
    ]),
    # ---- Anthropic's messages ----
    "messages-effort": _messages(thinking={"type": "adaptive"}, output_config={"effort": "low"}),
    "messages-tools-any": _messages(tools=ANTHROPIC_TOOLS, tool_choice={"type": "any"}),
    "messages-tools-none": _messages(tools=ANTHROPIC_TOOLS, tool_choice={"type": "none"}),
    "messages-tool-named": _messages(tools=ANTHROPIC_TOOLS, tool_choice={"type": "tool", "name": "weather"}),
    "messages-billing-block": _messages(system=_texts("x-anthropic-billing-header: cc_version=1; y", "real")),
    "messages-billing-line": _messages(system="x-anthropic-billing-header: cc_version=1\nreal"),
    "messages-user-twice": _messages(*USER, *USER),
    "messages-prefilled": _messages(*USER, YES),
    "messages-redacted": _messages(
        *USER, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, *_texts("t")]}, *USER
    ),
    "messages-system-within": _messages(*USER, YES, {"role": "system", "content": "mid"}, *USER, system="S"),
    "messages-results": _messages({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": "a"},
        {"type": "tool_result", "tool_use_id": "u", "is_error": True, "content": _texts("a", "b")},
        {"type": "tool_result", "tool_use_id": "v"},
    ]}),
    "messages-call": _messages(
        *USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]},
    ),
    "messages-template-arguments": _messages(chat_template_kwargs={"thinking": True}),
}  # fmt: skip

DECLARED: dict[str, tuple[str, dict[str, Any]]] = {
    "special-tokens": _chat(add_special_tokens=True),
    "truncated": _chat(truncate_prompt_tokens=5),
    "completion-truncated": (COMPLETIONS, {"prompt": TEXT, "truncate_prompt_tokens": 5, "max_tokens": 1}),
    "responses-truncated": _responses(truncation="auto"),
    "responses-built-in-tool": _responses(tools=[{"type": "web_search_preview"}]),
    "messages-thinking-off": _messages(thinking={"type": "disabled"}),
}
