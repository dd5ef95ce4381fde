"""Templates: what is rendered, and that every span points at its own characters."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.errors import KvtoolError
from kvtool.spans import Rendered
from kvtool.templates import ChatMLTools, JinjaTemplate, load_template

TOOL = {"type": "function", "function": {"name": "find", "description": "Find é", "parameters": {}}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "u"}}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "found"},
]

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_TOOLS = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "\n{% endfor %}"
)


def spans_point_home(rendered: Rendered, value_at: dict[str, str]) -> None:
    end = 0
    for span in rendered.spans:
        assert span.start >= end, "spans are in order and do not overlap"
        end = span.end
        if span.offset >= 0 and span.path in value_at:
            source = value_at[span.path]
            assert (
                rendered.text[span.start : span.end]
                == source[span.offset : span.offset + span.end - span.start]
            )


def test_chatml_renders_tools_calls_results_and_pictures() -> None:
    rendered = ChatMLTools().render(CONVERSATION, [TOOL])
    assert rendered.text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert json.dumps(TOOL, ensure_ascii=False) in rendered.text
    assert '<tool_call>\n{"name": "find", "arguments": {"q": "x"}}\n</tool_call>' in rendered.text
    assert "<|im_start|>tool\nfind\nfound<|im_end|>" in rendered.text
    assert rendered.text.endswith("<|im_start|>assistant\n")
    assert "one<|image_url:" in rendered.text
    assert [span.path for span in rendered.spans] == [
        "messages[0].content",
        "tools[0]",
        "messages[1].content[0].text",
        "messages[1].content[1]",
        "messages[2].tool_calls[0].function.name",
        "messages[2].tool_calls[0].function.arguments",
        "messages[3].name",
        "messages[3].content",
    ]


@pytest.mark.parametrize("calls", [[3], [{"function": 3}], "f"])
def test_what_is_no_tool_call_is_named(calls: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls}]
    with pytest.raises(KvtoolError, match=r"messages\[1\]\.tool_calls\[0\]: not a call"):
        ChatMLTools().render(messages, None)


def test_chatml_puts_tools_first_when_there_is_no_system_message() -> None:
    text = ChatMLTools().render([{"role": "user", "content": "hi"}], [TOOL], generation=False).text
    assert text.startswith("<|im_start|>system\n# Tools") and text.endswith(
        "<|im_start|>user\nhi<|im_end|>\n"
    )


def test_appending_a_turn_keeps_the_rendered_prefix() -> None:
    before = ChatMLTools().render(CONVERSATION[:2], [TOOL], generation=False).text
    assert ChatMLTools().render(CONVERSATION, [TOOL]).text.startswith(before)


@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_spans_of_both_kinds_of_template_point_at_their_characters(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    values = {f"messages[{n}].content": text for n, text in enumerate(texts)}
    spans_point_home(ChatMLTools().render(messages, None), values)
    spans_point_home(JinjaTemplate(PLAIN, "plain").render(messages, None), values)


def test_jinja_spans_know_what_trim_removed() -> None:
    rendered = JinjaTemplate(PLAIN, "plain").render([{"role": "user", "content": "  hello \n"}], None)
    (span,) = rendered.spans
    assert (rendered.text[span.start : span.end], span.offset) == ("hello", 2)


def test_jinja_gets_arguments_as_an_object_and_tools_as_json() -> None:
    rendered = JinjaTemplate(WITH_TOOLS, "t").render(CONVERSATION, [TOOL])
    assert 'find({"q": "x"})' in rendered.text
    tool = next(span for span in rendered.spans if span.path == "tools[0]")
    assert json.loads(rendered.text[tool.start : tool.end]) == TOOL


def test_auto_takes_the_models_template_unless_it_drops_tools() -> None:
    warnings: list[str] = []
    assert load_template("auto", WITH_TOOLS, warn=warnings.append).name == "auto"
    assert load_template("auto", PLAIN, warn=warnings.append).name == "chatml-tools"
    assert warnings == ["the model's own chat template ignores tools: chatml-tools is used instead"]
    assert load_template("auto", None).name == "chatml-tools"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for m in messages %}",
    ],
)
def test_a_hostile_or_broken_template_is_the_users_error(source: str) -> None:
    with pytest.raises(KvtoolError):
        JinjaTemplate(source, "bad.jinja").render([{"role": "user", "content": "x"}], None)


def test_a_template_may_not_change_the_request() -> None:
    with pytest.raises(KvtoolError):
        JinjaTemplate("{{ messages.append(1) }}", "bad.jinja").render(
            [{"role": "user", "content": "x"}], None
        )
