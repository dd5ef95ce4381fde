"""Unit tests for prompts: does every rendering of a prompt begin with the same tokens?

    def test_prefix():
        assert_prefix_stable(lambda: prompt(user="Ann"), lambda: prompt(user="Bob"), min_tokens=500)

The pytest plugin offers the same function as the fixture `assert_prefix_stable`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from kvtool.errors import KvtoolError
from kvtool.requests import Request, Source
from kvtool.tokens import PromptEncoder, load_encoder

Prompt = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""A text, a list of chat messages, or a request body with `messages` and perhaps `tools`."""
SHOWN = 40
"""Characters shown before and behind the place where two renderings part."""


def assert_prefix_stable(
    *renders: Callable[[], Prompt], min_tokens: int, tokenizer: str | None = None, chat_template: str = "auto"
) -> int:
    """The tokens that all renderings share at the front; AssertionError where they are below `min_tokens`.

    Each of `renders` is called twice, so that one alone shows what changes from call to call. Pass
    several for different users or days (with the clock set, as by monkeypatch). tokenizer: embedded,
    bytes, a folder, a tokenizer.json or a hub id; by default as everywhere in kvtool. KvtoolError for
    what is no prompt.
    """
    if not renders:
        raise KvtoolError("assert_prefix_stable: nothing to render", "pass a function that builds the prompt")
    encoder = _encoder(tokenizer, chat_template)
    requests = [_request(render()) for render in renders for _ in range(2)]
    first, *others = encoder.encode(requests)
    shared, parting = len(first), 0
    for number, ids in enumerate(others, start=1):
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, ids, strict=False)))
        if same < shared:
            shared, parting = same, number
    if shared >= min_tokens:
        return shared
    if not parting:
        raise AssertionError(f"the prompt has {shared} tokens, fewer than the {min_tokens} wanted")
    texts = [encoder.render(requests[number]).text for number in (0, parting)]
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    ends = " and ".join(repr(text[at : at + SHOWN]) for text in texts)
    raise AssertionError(
        f"renderings share {shared} tokens, fewer than the {min_tokens} wanted: "
        f"behind {texts[0][max(at - SHOWN, 0) : at]!r} they go on with {ends}"
    )


@cache
def _encoder(tokenizer: str | None, chat_template: str) -> PromptEncoder:
    return load_encoder(tokenizer, chat_template)


def _request(prompt: Prompt) -> Request:
    source = Source("prompt", 1)
    if isinstance(prompt, str):
        return Request("prompt", source, text=prompt)
    if isinstance(prompt, Mapping):
        messages, tools = prompt.get("messages"), prompt.get("tools")
    else:
        messages, tools = prompt, None
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise KvtoolError(
            f"assert_prefix_stable: {type(prompt).__name__} is no prompt",
            "return a text, a list of messages, or a dict with messages and tools",
        )
    listed = [dict(message) for message in messages]
    return Request("prompt", source, messages=listed, tools=None if tools is None else list(tools))
