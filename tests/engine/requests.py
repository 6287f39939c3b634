"""One kind of request for each way to say a prompt, as fields of a body without its model."""

from __future__ import annotations

from typing import Any

TEXT = "Grüße aus 東京 🗼: def f(x):\n\t    return x**2   # ²\n"
TOOL = {
    "name": "weather",
    "description": "Current weather <of> a place & its \"surroundings\".",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
TURNS = [
    {"role": "user", "content": "What is the weather in Zürich?"},
    {"role": "assistant", "content": "Sunny, I think."},
    {"role": "user", "content": TEXT},
]

COMPLETIONS: dict[str, dict[str, Any]] = {
    "text": {"prompt": TEXT},
    "texts": {"prompt": [TEXT, "another one", "¿y otro?"]},
    "no-special-tokens": {"prompt": TEXT, "add_special_tokens": False},
    "ids": {"prompt": list(range(100, 171))},
    "sequences-of-ids": {"prompt": [[100, 101, 102], [1000, 999]]},
    "samples": {"prompt": TEXT, "n": 2},
}

RESPONSES: dict[str, dict[str, Any]] = {
    "text": {"input": TEXT},
    "instructions": {"input": TEXT, "instructions": "Be terse.\n"},
    "messages": {"input": TURNS},
    "parts": {"input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
    ]},
    "tools": {"input": TEXT, "tools": [{"type": "function", **TOOL}]},
    "calls": {
        "tools": [{"type": "function", **TOOL}],
        "input": [
            {"role": "user", "content": "Weather?"},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"place": "Zürich"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": '{"sky": "clear"}'},
        ],
    },
    "reasoning": {"input": [
        {"role": "user", "content": "How many?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Three."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "3"}]},
        {"role": "user", "content": "And now?"},
    ]},
}  # fmt: skip

MESSAGES: dict[str, dict[str, Any]] = {
    "text": {"messages": [{"role": "user", "content": TEXT}]},
    "turns": {"messages": TURNS},
    "system": {"messages": TURNS, "system": "Be terse."},
    "system-blocks": {
        "messages": TURNS,
        "system": [
            {"type": "text", "text": "Be terse.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be kind."},
        ],
    },
    "blocks": {"messages": [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": TEXT}]},
    ]},
    "tools": {
        "messages": TURNS,
        "tools": [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}],
    },
    "calls": {
        "tools": [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Zürich"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "clear"}]},
                {"type": "text", "text": "And tomorrow?"},
            ]},
        ],
    },
    "thinking": {"messages": [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Three.", "signature": "c2ln"},
            {"type": "text", "text": "3"},
        ]},
        {"role": "user", "content": "And now?"},
    ]},
}  # fmt: skip

GENERATE: dict[str, dict[str, Any]] = {
    "ids": {"token_ids": list(range(100, 171)), "sampling_params": {"max_tokens": 2}},
    "salted": {"token_ids": [5, 6, 7], "cache_salt": "s", "sampling_params": {"max_tokens": 2}},
}
