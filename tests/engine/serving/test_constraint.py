"""response_format: every answer is JSON of the wanted shape, hit or miss; what cannot be held to is 400."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import openai
import pytest

Serving = Callable[..., AbstractContextManager[Any]]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Köln", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["city", "days", "tags"],
    "additionalProperties": False,
}
STRICT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def running(serving: Serving, tiny_model: Path) -> Iterator[Any]:
    with serving(model=str(tiny_model), block_size=8, device_blocks=160) as made:
        yield made


@pytest.fixture
def client(running: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, running: Any, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": "Plan a trip."}]
    model = running.engine.model_id
    return client.chat.completions.create(
        model=model, messages=messages, **{"max_tokens": 300, "response_format": STRICT, **options}
    )


def check(text: str) -> None:
    trip = json.loads(text)
    assert set(trip) == {"city", "days", "tags"} and trip["city"] in SCHEMA["properties"]["city"]["enum"]
    assert isinstance(trip["days"], int) and 1 <= trip["days"] <= 9
    assert len(trip["tags"]) <= 2 and set(trip["tags"]) <= {"a", "b"}


def test_a_model_of_random_weights_answers_by_the_schema(client: openai.OpenAI, running: Any) -> None:
    """Greedy and sampled, each of n choices, beside a request without constraints."""
    answer = ask(client, running, temperature=1.2, seed=3, n=3)
    said = [choice.message.content for choice in answer.choices]
    for text, choice in zip(said, answer.choices, strict=True):
        check(text)
        assert choice.finish_reason == "stop"
    assert len(set(said)) > 1
    again = ask(client, running, temperature=1.2, seed=3, n=3, extra_body={"cache_salt": "cold"})
    assert [choice.message.content for choice in again.choices] == said, "the same, hit or miss"
    check(ask(client, running, temperature=0, extra_body={"ignore_eos": True}).choices[0].message.content)


def test_streamed_json_is_whole_at_its_end(client: openai.OpenAI, running: Any) -> None:
    stream = ask(client, running, temperature=0, stream=True)
    check("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))


def test_json_object_is_an_object_as_far_as_it_goes(client: openai.OpenAI, running: Any) -> None:
    answer = ask(client, running, temperature=0, max_tokens=40, response_format={"type": "json_object"})
    text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert text.lstrip()[:1] == "{"
    assert finish == "length" or isinstance(json.loads(text), dict)


def test_a_client_that_parses_gets_its_type(client: openai.OpenAI, running: Any) -> None:
    import pydantic

    class Answer(pydantic.BaseModel):
        yes: bool

    parsed = client.chat.completions.parse(
        model=running.engine.model_id,
        messages=[{"role": "user", "content": "Yes?"}],
        response_format=Answer,
        temperature=0,
        max_tokens=60,
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer)


@pytest.mark.parametrize(
    ("wanted", "needle"),
    [
        ({"type": "json_schema"}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "unheard"}}}, "held to"),
        ({"type": "yaml"}, "type"),
    ],
)
def test_what_cannot_be_held_to_is_refused(
    client: openai.OpenAI, running: Any, wanted: dict[str, Any], needle: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, running, response_format=wanted)
    assert needle in error.value.message and str(error.value.param).startswith("response_format")


def test_without_the_extra_it_says_what_to_install(
    client: openai.OpenAI, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtool.engine.serving.constraint.find_spec", lambda name: None)
    with pytest.raises(openai.BadRequestError, match=r"kvtool\[json\]"):
        ask(client, running, response_format={"type": "json_object"})


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Bern", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "distance")
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_can_be_forced(client: openai.OpenAI, running: Any, stream: bool) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "distance"}}):
        options = {"tools": TOOLS, "tool_choice": choice, "response_format": openai.NOT_GIVEN}
        answer = ask(client, running, temperature=1.1, seed=2, stream=stream, **options)
        if stream:
            chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
            calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
            finish = chunks[-1].finish_reason
        else:
            calls, finish = answer.choices[0].message.tool_calls, answer.choices[0].finish_reason
        assert len(calls) == 1 and finish == "tool_calls"
        assert calls[0].function.name in (("weather", "distance") if choice == "required" else ("distance",))
        assert json.loads(calls[0].function.arguments)["city"] in ("Bern", "Oslo")


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "unknown"}}},
        {"tools": TOOLS, "tool_choice": {"type": "custom"}},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": 5}},
        {"tools": TOOLS, "tool_choice": "required", "response_format": STRICT},
    ],
)
def test_a_call_that_cannot_be_forced_is_refused(
    client: openai.OpenAI, running: Any, fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, running, **{"response_format": openai.NOT_GIVEN, **fields})
    assert error.value.param == "tool_choice"
