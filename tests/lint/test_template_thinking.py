"""KV501 needs a template that strips the thinking of earlier turns."""

from collections.abc import Callable, Sequence
from typing import Any

from kvtool.lint.check import find
from kvtool.requests import Request
from kvtool.templates import JinjaTemplate
from kvtool.tokens import PromptEncoder, load_tokenizer

Read = Callable[[Sequence[dict[str, Any]]], list[Request]]

STRIPS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content and not loop.index > messages|length - 2 %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)


def test_a_template_that_strips_thinking_is_named(read: Read) -> None:
    encoder = PromptEncoder(load_tokenizer("bytes"), JinjaTemplate(STRIPS, "strips"))
    long = " and the reason for it is written down here at some length, so that it counts" * 8
    rows: list[dict[str, Any]] = []
    messages: list[dict[str, str]] = [{"role": "system", "content": "You answer questions." + long}]
    for turn in range(4):
        messages = [*messages, {"role": "user", "content": f"Question {turn}?" + long}]
        rows.append({"messages": messages, "session_id": "a", "timestamp": turn})
        messages = [
            *messages,
            {"role": "assistant", "content": f"<think>hm{long}</think>Answer {turn}." + long},
        ]
    findings = find(read(rows), encoder, 8)
    assert [finding.code for finding in findings] == ["KV501"]
