from __future__ import annotations

from typing import Any

import jinja2
import pytest

from eluvix_extproc.tokens.template import MAX_RANGE_ITEMS, ChatTemplate, TemplateFailed

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = USER, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s>"),
        ("{{ {'a': '<é & \\'>', 'b': none} | tojson }}", '{"a": "<é & \'>", "b": null}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hi!"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{{ 'ab' * 3 }}{{ 2 * 3 }}", "ababab6"),
        ("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", "True True True"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(messages[0]['content']) }}", "[hi]"),
    ],
)
def test_what_chat_templates_are_written_with(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('Conversation roles must alternate') }}",
        "{{ messages[0].content.absent.deeper }}",
        "{{ 1 + 'a' }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ lipsum(n=100) }}",
    ],
    ids=["refusal", "undefined", "type", "internals", "mutation", "filler"],
)
def test_what_a_template_may_not_do_fails(source: str) -> None:
    with pytest.raises(TemplateFailed):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 10 ** 100000000 }}",
        "{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    ],
    ids=["nested ranges", "one range", "repeated text", "repeated list", "power", "output"],
)
def test_a_render_is_bounded(source: str) -> None:
    with pytest.raises(TemplateFailed):
        render(source)


def test_each_render_has_a_budget_of_its_own() -> None:
    template = ChatTemplate(f"{{% for i in range({MAX_RANGE_ITEMS}) %}}{{% endfor %}}ok", {})
    assert [template.render(USER), template.render(USER)] == ["ok", "ok"]


def test_the_conversation_is_a_list_whatever_it_was_kept_in() -> None:
    assert render("{{ (messages + [1]) | length }}", tuple(USER)) == "2"


def test_a_template_that_does_not_compile_says_where() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate("{% if %}", {})


def test_named_arguments_of_the_request_are_given_but_cannot_replace_ours() -> None:
    source = "{{ enable_thinking }} {{ messages | length }} {{ bos_token }}"
    assert render(source, kwargs={"enable_thinking": False, "messages": [], "range": 1}) == "False 1 <s>"


def test_a_continued_list_of_parts_ends_with_its_last_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}, {"type": "image"}]
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text or '<img>' }}{% endfor %}</s>{% endfor %}"
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(source, [{"role": "assistant", "content": parts}], **options) == "one<img>two"


@pytest.mark.parametrize("messages", [[], [{"role": "assistant", "content": [{"type": "image"}]}]])
def test_nothing_to_continue_fails(messages: Any) -> None:
    with pytest.raises(TemplateFailed):
        render("{{ messages[-1].content }}", messages, add_generation_prompt=False, continue_final_message=True)


def test_a_template_without_content_continues_nothing() -> None:
    with pytest.raises(TemplateFailed):
        render("{{ messages }}", add_generation_prompt=False, continue_final_message=True)


def test_members_of_messages_do_not_hide_what_a_mapping_can_do() -> None:
    message = [{"role": "user", "content": "hi", "items": "mine", "absent": None}]
    source = (
        "{% for key, value in messages[0].items() %}{{ key }} {% endfor %}{{ messages[0].role }}{{ messages[0].no }}"
    )
    assert render(source, message) == "role content items absent user"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", "openai"),
        ("{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages | list %}{% for p in m.content | list %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", "string"),
        ("{% for m in others %}{% for p in m.content %}{% endfor %}{% endfor %}", "string"),
        (
            "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "openai",
        ),
        (
            "{% macro show(x, c) %}{% for p in c %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(1, c=m['content']) }}{% endfor %}",
            "openai",
        ),
        (
            "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.tool_calls) }}{% endfor %}",
            "string",
        ),
        (
            "{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}{{ show(messages) }}", "string"),
        ("{% set ns.m = messages %}{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", "string"),
    ],
)
def test_the_content_format_is_read_off_the_template(source: str, expected: str) -> None:
    assert ChatTemplate(source, {}).content_format == expected
