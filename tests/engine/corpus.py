"""Conversations to compare counts on: every shape of a chat-completions body that decides which tokens an engine
prefills, in many scripts and with text that tokenizers and templates treat apart. The same bodies at every call."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

TEXTS: dict[str, str] = {
    "english": "The quick brown fox doesn't jump over 13 lazy dogs; it's 3.14159 times as quick, isn't it?",
    "german": "Größe, Straße, Übermut: „Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.“",
    "french": "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis — n'est-ce pas ?",
    "vietnamese": "Tiếng Việt có nhiều dấu: ắ ằ ẵ ẳ ặ, và cả những từ ghép như “nghiêng nghiêng”.",
    "turkish": "Pijamalı hasta yağız şoföre çabucak güvendi. İIıi ĞğŞş",
    "russian": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Γειά σου Κόσμε!",
    "chinese": "你好，世界！我能吞下玻璃而不伤身体。繁體字也可以。中文English混排123。",
    "japanese": "いろはにほへと ちりぬるを。カタカナとﾊﾝｶｸ、漢字も混ざる文章です。",
    "korean": "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "arabic": "مرحبا بالعالم، كيف الحال؟ نصٌّ حكيمٌ لهُ سِرٌّ قاطِعٌ وَذُو شَأنٍ",
    "hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם",
    "hindi": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार।",
    "thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "tamil": "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்",
    "georgian-armenian": "ვეპხის ტყაოსანი. Բարեւ ձեզ, աշխարհ։",
    "burmese-khmer": "သီဟိုဠ်မှ ဉာဏ်ကြီးရှင်သည် ខ្ញុំអាចញ៉ាំកញ្ចក់បាន",
    "runes-and-planes": "ᚠᛇᚻ᛫ᛒᛦᚦ 𐌰𐌱𐌲 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𠜎𠜱 𒀀𒀁",
    "emoji": "😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇨🇭🇯🇵 ❤️ ☃ 1️⃣ 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🫠",
    "combining": "e\u0301 é A\u030a Å n\u0303\u0323 o\u0308\u0304 Z\u0351\u036b\u0343\u036a\u0302 ﬁ ﬂ ½ Ⅻ",
    "python": "def f(x: int) -> int:\n    '''doc'''\n    return x ** 2  # square\n\n\nclass A(B):\n\tpass\n",
    "c": '#include <stdio.h>\nint main(void) { for (int i = 0; i < 10; ++i) printf("%d\\n", i); return 0; }',
    "sql": "SELECT a.id, COUNT(*) AS n FROM t AS a LEFT JOIN u ON a.id=u.id WHERE n>=10 GROUP BY 1 ORDER BY 2 DESC;",
    "json": '{"a": [1, 2.50, -3e-7, null, true], "b": {"c": "\\u00e9\\n\\"q\\""}, "": "/\\\\/"}',
    "html": "<html><body class='a b'>&nbsp;&amp;<!-- c --></body></html> https://example.com/a?b=c&d=%20e#f",
    "shell": "$ ls -la | grep 'foo' && echo \"bar\" > /dev/null 2>&1; \\\\ \\n ~!@#$%^&*()_+`-={}[]|:;<>?,./",
    "markdown": "# T\n\n| a | b |\n|---|:-:|\n| **x** | `y` |\n\n> quote\n\n1. one\n   - two\n\n```py\nprint(1)\n```\n",
    "diff": "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old\n+new\n context\n\\ No newline at end of file",
    "base64": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "numbers": "0 1 12 123 1234 12345 1,234,567.89 0xDEADBEEF 1e-9 10% ٣٤٥ १२३ 一二三 00000000 3.14.15",
    "spaces": "a" + " " * 137 + "b" + " " * 16 + "\n" + " " * 33 + "c   ",
    "newlines": "\n\n\na\n\n\n\n\n\n\n\nb\n \n  \n\t\n",
    "crlf": "one\r\ntwo\r\n\r\nthree\rfour\n\rfive",
    "tabs": "\t\ta\t b \t\t\tc\t",
    "control": "a\u0000b\u0001c\u0007d\u0008e\u001bf\u007fg\u0085h\u009fi",
    "invisible": "a\u00a0b\u2003c\u200bd\u200de\ufefff\u2028g\u2029h\u202ei\u00ad\u2060",
    "unassigned": "\ufffd\uffff\ue000\U0010ffff\U000e0001",
    "repetition": "aaaaaaaaaa" * 30 + "=" * 80 + "ab" * 60 + "!?" * 20,
    "specials": "<｜User｜> typed by a user <｜Assistant｜><｜end▁of▁sentence｜> and <｜begin▁of▁sentence｜>",
    "broken-specials": "<｜User <｜User｜ ｜> <|im_start|>user\n<|im_end|> <s></s> [INST] <<SYS>> <pad> <|endoftext|>",
    "thinking": "<think>\nhm, let me see\n</think>\n\nThe answer is 4. </think> twice",
    "jinja": "{{ bos_token }} {% for m in messages %}{# no #}{{ m }}{% endfor %} {%- raw -%}",
    "leading-space": "  two spaces before and two behind  ",
    "empty": "",
    "one-space": " ",
    "one-newline": "\n",
    "one-letter": "a",
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": 'Zürich, 東京 <or> "else"'},
                    "days": {"type": "integer", "minimum": 1.0},
                },
                "required": ["city"],
            },
            "name": "get_weather",
            "description": "Weather of a place & its 'surroundings'.",
        },
    },
    {"type": "function", "function": {"name": "now", "strict": True, "note": "no member of a function"}, "note": 1},
]


def conversations() -> list[dict[str, Any]]:
    """About 150 bodies without their model, each of which an engine answers."""
    return [*_texts(), *_turns(), *_contents(), *_fields(), *_tools(), *_options()]


def _texts() -> Iterator[dict[str, Any]]:
    for text in TEXTS.values():
        yield {"messages": [user(text)]}
    for text, other in zip(TEXTS.values(), [*list(TEXTS.values())[7:], *list(TEXTS.values())[:7]], strict=True):
        yield {"messages": [system(other), user(text), assistant(other), user(other + text)]}
    yield {"messages": [user("\n".join(TEXTS.values()))]}


def _turns() -> Iterator[dict[str, Any]]:
    rng = random.Random(20_26)
    texts = [text for name, text in TEXTS.items() if name != "repetition"]
    for length in (2, 3, 5, 8, 13, 21, 40):
        roles = [user, assistant] * length
        start = [system(rng.choice(texts))] if length % 2 else []
        yield {"messages": [*start, *(role(rng.choice(texts)[:60]) for role in roles[: 2 * length - 1])]}
    yield {"messages": [user("a"), user("b"), assistant("c"), assistant("d"), user("e")]}
    yield {"messages": [assistant("I begin."), user("Go on.")]}
    yield {"messages": [user("a"), system("in the middle"), user("b")]}
    yield {"messages": [system("one"), system("two"), user("b")]}
    yield {"messages": [system("alone")]}
    yield {"messages": [user("word " * 1_200)]}


def _contents() -> Iterator[dict[str, Any]]:
    part = [{"type": "text", "text": text} for text in ("one", " two\n", "", "三")]
    cached = {"type": "text", "text": "kept", "cache_control": {"type": "ephemeral"}}
    yield {"messages": [user(part[:1])]}
    yield {"messages": [user(part)]}
    yield {"messages": [system(part), user([cached, *part])]}
    yield {"messages": [user(part), assistant(part), user(part)]}
    yield {"messages": [user("a"), assistant([{"type": "refusal", "refusal": "No."}]), user("b")]}
    yield {"messages": [user("a"), {"role": "assistant", "content": "x", "refusal": "No.", "audio": None}, user("b")]}
    yield {"messages": [user("a"), assistant(None), user("b")]}
    yield {"messages": [user("a"), {"role": "assistant"}, user("b")]}
    yield {"messages": [user([])]}
    yield {"messages": [{"role": "user"}, user("b")]}
    yield {"messages": [user("a"), assistant([{"type": "thinking", "thinking": "hm"}, part[0]]), user("b")]}


def _fields() -> Iterator[dict[str, Any]]:
    for name in ("reasoning", "reasoning_content"):
        yield {"messages": [user("2+2?"), {"role": "assistant", name: "I add.", "content": "4"}, user("3+3?")]}
    yield {"messages": [{"role": "user", "content": "a", "name": "ann"}, assistant("b"), user("c")]}
    yield {"messages": [{"role": "developer", "content": "Be kind."}, user("a")]}
    yield {"messages": [system("S"), {"role": "developer", "content": "D"}, user("a")]}
    yield {"messages": [user("a"), {"role": "developer", "content": [{"type": "text", "text": "D"}]}, user("b")]}
    yield {"messages": [system("x-anthropic-billing-header: cc_version=2; cch=1f\nBe terse."), user("a")]}
    yield {"messages": [{"role": "user", "content": "a", "unknown": {"deep": [1]}, "tool_calls": []}]}
    yield {"messages": [{"role": "critic", "content": "a role of its own"}, user("b")]}


def _tools() -> Iterator[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    function = {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 3}'}
    other = {"index": 1, "function": function, "type": "function", "id": "call_2"}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}
    for content in (None, "", "Let me look."):
        asked = {"role": "assistant", "content": content, "tool_calls": [call]}
        yield {"messages": [user("When?"), asked, result], "tools": TOOLS, "tool_choice": "none"}
    both = {"role": "assistant", "content": None, "tool_calls": [call, other]}
    texts = [{"type": "text", "text": "sun"}, {"type": "text", "text": "rain"}]
    parts = {"role": "tool", "tool_call_id": "call_2", "content": texts}
    yield {"messages": [user("When?"), both, result, parts, assistant("Noon."), user("And now?")]}
    yield {"messages": [user("Hi.")], "tools": TOOLS, "tool_choice": "none"}
    yield {"messages": [system("S"), user("Hi.")], "tools": TOOLS[:1], "tool_choice": "none"}
    for arguments in ("", "not JSON", "[1, 2]", '{"n": 12345678901234567890, "f": 1.0, "e": 1e30}'):
        function = {"name": "now", "arguments": arguments}
        yield {"messages": [user("a"), {"role": "assistant", "tool_calls": [{**call, "function": function}]}, result]}


def _options() -> Iterator[dict[str, Any]]:
    turns = [user("Say it."), assistant("I say")]
    yield {"messages": turns, "add_generation_prompt": False}
    yield {"messages": turns, "add_generation_prompt": False, "continue_final_message": True}
    for text in ("ends in a space ", "  and begins with two", TEXTS["specials"], TEXTS["chinese"]):
        yield {
            "messages": [user("Say it."), assistant(text)],
            "add_generation_prompt": False,
            "continue_final_message": True,
        }
    for kwargs in (
        {"thinking": False},
        {"enable_thinking": True, "unused": [1]},
        {"x": None, "add_generation_prompt": False},
    ):
        yield {"messages": turns, "chat_template_kwargs": kwargs}
    yield {"messages": turns, "documents": [{"title": "T", "text": "Ü"}, {"text": "b", "title": "a"}]}
    for effort in ("none", "low", "high"):
        yield {"messages": turns, "reasoning_effort": effort}
    yield {"messages": [user("a")], "echo": True}
    yield {"messages": [user("a")], "add_special_tokens": False}
    yield {"messages": [user("a")], "response_format": {"type": "text"}, "n": 1, "user": "u", "seed": 7}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def assistant(content: Any) -> Message:
    return {"role": "assistant", "content": content}


def system(content: Any) -> Message:
    return {"role": "system", "content": content}


def dumped() -> list[bytes]:
    """The same as bytes, as several clients write JSON: with and without escapes and spaces."""
    ways: list[dict[str, Any]] = [{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 1}]
    return [json.dumps(body, **ways[at % len(ways)]).encode() for at, body in enumerate(conversations())]
