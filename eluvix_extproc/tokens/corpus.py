"""Text that the encoders are compared and timed on."""

from __future__ import annotations

from collections.abc import Sequence

SAMPLES: tuple[str, ...] = (
    "",
    " ",
    "a",
    "\n\n\n\t\t  \r\n \r\n",
    "The quick brown fox jumps over the lazy dog. It's they're we've I'LL don't DON'T 'tis o'clock",
    "Numbers 1 12 123 1234 12345 3.14159 1,000,000 0xFF 1e-9 ٣٤٥ १२३ Ⅻ ½ 10%",
    "def f(x: int) -> int:\n    return x ** 2  # square\n\n\nclass A(B):\n\tpass\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2, 3]}}',
    "<html><body class='a'>&nbsp;</body></html> https://example.com/a?b=c&d=%20e#f user@example.com",
    "Größe, naïve café, Ærøskøbing, ŁódŹ, İstanbul, ﬁn, e\u0301 versus é, A\u030a versus Å, ß ẞ",
    "Привет, мир! Съешь же ещё этих мягких французских булок. Γειά σου Κόσμε",
    "你好，世界！这是一个测试。中文English混排123。繁體字 日本語のテキスト、カタカナ ﾊﾝｶｸ 한국어 텍스트입니다.",
    "مرحبا بالعالم، كيف الحال؟ שלום עולם नमस्ते दुनिया สวัสดีชาวโลก வணக்கம் ආයුබෝවන් ကမ္ဘာ გამარჯობა Բարեւ ሰላም",
    "😀 👍🏽 👨‍👩‍👧‍👦 🇨🇭 ❤️ ☃ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "\u00a0\u2003\u200b\u200d\ufeff\u2028\u2029\u0000\u0001\u007f\u0085\ufffd\U0010ffff",
    "x" * 300 + " " * 300 + "y" + "\n" * 40 + "-" * 120 + "=" * 80 + "\t" * 33 + ".",
    "trailing spaces   \nleading\n   spaces  and\ttabs \t mixed \n \n end ",
    "$ ls -la | grep 'foo' && echo \"bar\" > /dev/null 2>&1; \\\\ \\n ~!@#$%^&*()_+`-={}[]|:;<>?,./",
    "| a | b |\n|---|:-:|\n| **x** | `y` |\n\n> quote\n\n1. one\n2. two\n\n```py\nprint('hi')\n```\n",
    "CamelCaseIdentifier snake_case_identifier SCREAMING_CASE kebab-case $var @decorator #hash __dunder__",
)


def self_check_texts(specials: Sequence[str]) -> list[str]:
    """The samples alone and joined, and added tokens in every neighbourhood that can disturb them."""
    texts = [*SAMPLES, "".join(SAMPLES), "\n".join(SAMPLES)]
    for token in specials:
        texts += [token, token[:-1], token[1:], f"{token}{token}", f"a{token}b", f" {token} "]
        texts.append(f"\n{token}\n\nword  {token}\t9")
    texts.append(" ".join(f"{token}{sample}" for token, sample in zip(specials, SAMPLES * len(specials), strict=False)))
    return texts


def timing_text(size: int) -> str:
    """Prose-like words that repeat too little for an encoder's word cache to help: speed is that of fresh text."""
    syllables = ("ba", "ce", "di", "fo", "gu", "han", "jer", "kil", "mop", "qua", "rest", "shi", "tro", "win", "tion")
    words: list[str] = []
    length, state = 0, 12345
    while length < size:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        count = 1 + state % 3
        word = "".join(syllables[(state >> (5 + 5 * i)) % len(syllables)] for i in range(count))
        words.append(word)
        length += len(word) + 1
    return " ".join(words)
