"""The live page in Chromium: it draws what the server has, follows it, wants the key, shows text as text."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser import Visit

Serving = Callable[..., AbstractContextManager[Any]]
Open = Callable[..., Visit]
WEB = httpx.Client(timeout=60)
EVIL = "<img src=x onerror=alert(1)> is what the agent says first. "


def ask(running: Any, prompt: str, **headers: str) -> None:
    body = {"model": running.engine.model_id, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    assert WEB.post(f"{running.url}/v1/completions", json=body, headers=headers).status_code == 200


def tiers(visit: Visit) -> dict[str, list[str]]:
    rows = [row.locator("td").all_inner_texts() for row in visit.page.locator("#tiers tr").all()]
    return {row[0]: row[2:] for row in rows}


def test_the_page_shows_tiers_hit_rate_and_hot_prefixes_and_follows(
    serving: Serving, tiny_model: Path, visit: Open
) -> None:
    from playwright.sync_api import expect

    with serving(model=str(tiny_model), block_size=16, device_blocks=40, host_memory=0) as running:
        for number in range(3):
            ask(running, f"{EVIL * 2}Question {number}?", **{"x-session-id": f"s{number}"})
        running.idle()
        seen = visit(f"{running.url}/")
        page = seen.page
        page.wait_for_selector("#tiers tr")
        stats = WEB.get(f"{running.url}/kv/stats").json()
        device = stats["tiers"]["device"]
        assert tiers(seen) == {
            "device": [str(device["used"]), "40", "0", str(stats["counts"]["hit_tokens_device"])]
        }
        assert page.inner_text("#rate") == f"{100 * stats['hit_rate']['tokens']:.1f} %"
        assert page.inner_text("#about").startswith(stats["model"]) and page.inner_text("#queue") == "0 / 0"
        share = page.locator("#tiers .used").evaluate("bar => bar.style.width")
        assert share == f"{100 * device['used'] / 40:g}%"
        page.wait_for_selector("#prefixes tr")
        cells = page.locator("#prefixes tr").first.locator("td").all_inner_texts()
        assert cells[0] == EVIL[:16] and cells[2:] == [str(len(EVIL * 2) // 16 * 16), "3", "3", "device"]
        assert page.locator("img").count() == 0, "a prompt is text, whatever it says"
        ask(running, "something else altogether, and long enough for some blocks")
        expect(page.locator("#tiers td:nth-child(3)")).not_to_have_text(str(device["used"]))
        assert seen.complaints == [] and seen.requests == []
        assert seen.serious_violations() == []


def test_another_server_behind_the_same_address_begins_anew(
    serving: Serving, tiny_model: Path, visit: Open
) -> None:
    """Its counts begin at nothing: against the last server's they would give less than none a second."""
    from playwright.sync_api import expect

    with serving(model=str(tiny_model), block_size=16, device_blocks=40, host_memory=0) as running:
        ask(running, EVIL * 4)
        running.idle()
        stats = WEB.get(f"{running.url}/kv/stats").json()
        seen = visit(f"{running.url}/")
        expect(seen.page.locator("#speed")).to_have_text("0")
        restarted = {**stats, "counts": {**stats["counts"], "computed_tokens": 7, "prompt_tokens": 7}}
        restarted["counts"]["hit_tokens_device"] = 0
        seen.page.route("**/kv/stats", lambda route: route.fulfill(json=restarted))
        expect(seen.page.locator("#speed")).to_have_text("-")
        expect(seen.page.locator("#speed")).to_have_text("0")
        assert seen.page.inner_text("#recent") == "-" and seen.complaints == []


def test_with_keys_the_page_waits_for_the_admins(
    serving: Serving, tiny_model: Path, tmp_path: Path, visit: Open
) -> None:
    from playwright.sync_api import expect

    keys = tmp_path / "keys"
    keys.write_text("red-key red\nroot-key admin\n")
    with serving(model=str(tiny_model), block_size=16, device_blocks=40, api_key_file=keys) as running:
        seen = visit(f"{running.url}/")
        page = seen.page
        expect(page.locator("#about")).to_have_text("the server wants its admin key")
        assert page.locator("#tiers tr").count() == 0
        page.fill("#key", "root-key")
        page.wait_for_selector("#tiers tr")
        assert page.inner_text("#about").startswith(running.engine.model_id)
        assert all("401" in complaint for complaint in seen.complaints), "and no script fails"


def test_hot_prefixes_end_where_prompts_part(fake_engine: Callable[..., Any]) -> None:
    from kvtool.engine.serving.hot import hot_prefixes
    from kvtool.tokens import BytesTokenizer

    engine = fake_engine(device=60)
    trunk = list(range(100, 112))  # three blocks
    for number in range(4):
        engine.ask([*trunk, *[number % 2] * 4, *[50 + number] * 5], 1, session=f"s{number}")
        engine.run()
    engine.ask([9] * 9, 1)
    engine.run()
    found = hot_prefixes(engine.pool, engine.index, BytesTokenizer(), 10)
    assert [(row["tokens"], row["uses"], row["tier"]) for row in found] == [
        (12, 4, "device"),
        (16, 2, "device"),
        (16, 2, "device"),
    ]
    assert found[0]["sessions"] == pytest.approx(4, abs=1)
    assert len(hot_prefixes(engine.pool, engine.index, BytesTokenizer(), 1)) == 1
