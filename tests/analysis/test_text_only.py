"""Which blocks a server of text is asked for, against the prompts' own text up to their first other part."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import Plan, PlanConfig, Planner
from kvtool.media import PLACEHOLDER, placeholder
from kvtool.requests import Request, Source
from kvtool.tokens import PromptEncoder, load_encoder

PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png", "detail": "low"}}
OTHER = {"type": "image_url", "image_url": {"url": "https://example.com/dog.png", "detail": "low"}}
STRANGE = {"type": "telemetry", "blob": 1}


@pytest.fixture(scope="module")
def encoder(tiny_model) -> PromptEncoder:
    return load_encoder(str(tiny_model))


def plan_of(
    contents: list[object], encoder: PromptEncoder, size: int, least: int
) -> tuple[Plan, list[Request]]:
    requests = [
        Request(str(at), Source("log", at + 1), messages=[{"role": "user", "content": content}])
        for at, content in enumerate(contents)
    ]
    planner = Planner(build_workload(requests, encoder, size), 4096, decode=encoder.tokenizer.decode)
    return planner.plan(PlanConfig(min_requests=least), lambda depth: 10), requests


def paths(plan: Plan) -> set[bytes]:
    found: list[bytes] = []
    for parent, tokens in zip(plan.parent.tolist(), plan.tokens, strict=True):
        found.append((found[parent] if parent >= 0 else b"") + tokens.tobytes())
    return set(found)


PARTS = st.sampled_from(
    [PICTURE, OTHER, {"type": "text", "text": "look at a b c d "}, {"type": "text", "text": "b <|x: "}]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(contents=st.lists(st.lists(PARTS, max_size=4), min_size=1, max_size=5), size=st.integers(1, 40))
def test_what_is_stored_ends_where_the_text_does(encoder, contents, size) -> None:
    plan, requests = plan_of(contents, encoder, size, 1)
    expected, left_out = set(), set()
    for request, content in zip(requests, contents, strict=True):
        (tokens,) = encoder.encode([request])
        text = encoder.render(request).text
        marks = [text.index(placeholder(part)) for part in content if "text" not in part]
        end = len(encoder.tokenizer.encode(text[: min(marks)])) if marks else len(tokens)
        for last in range(size, len(tokens), size):  # the last token is always computed
            (expected if last <= end else left_out).add(tokens[:last].astype(np.uint32).tobytes())
    assert paths(plan) == expected
    assert plan.forecast.not_text == len(left_out)


def test_a_shared_picture_counts_as_little_as_one_of_many(encoder) -> None:
    """Every prompt shows a picture of its own: what they share ends before its marker, not behind it."""
    begin = "What is to be seen in this picture, please? "
    pictures = [{**PICTURE, "image_url": {"url": f"https://example.com/{at}.png"}} for at in range(3)]
    contents = [[{"type": "text", "text": begin}, picture] for picture in pictures]
    plan, requests = plan_of(contents, encoder, 8, 2)
    text = encoder.render(requests[0]).text
    assert len(plan) == len(encoder.tokenizer.encode(text[: text.index("<|image_url: ")])) // 8
    assert plan.forecast.not_text == 2, "all prompts share the placeholder's name"


@pytest.mark.parametrize(
    "text", ["<|x: a b c", "a b c d e f g h i j k l m n o p", "<|x: backpacklidgefhnop|>"]
)
def test_text_that_looks_a_little_like_it_is_text(text) -> None:
    assert not PLACEHOLDER.search(text) and PLACEHOLDER.match(placeholder(STRANGE))
