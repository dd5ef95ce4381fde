"""Histories that are cut and tools without an order, in Python sources."""

import textwrap

import pytest

from kvtool.lint.static.lists import check_lists


def found(source: str) -> list[tuple[str, int, str, str]]:
    return [
        (one.code, one.location.row, one.location.path, one.slot)
        for one in check_lists(textwrap.dedent(source), "a.py")
    ]


LOOP = """
    def step(client, history, system):
        {}
        return client.chat(model="m", messages={})
"""


@pytest.mark.parametrize(
    ("before", "sent", "line", "slot"),
    [
        ("pass", "[system] + history[-20:]", 4, "history[-20:]"),
        ("pass", "[system, *history[-KEEP:]]", 4, "history[-KEEP:]"),
        ("recent = history[-20:]", "[system, *recent]", 3, "history[-20:]"),
        ("history = history[-6:]", "history", 3, "history[-6:]"),
        ("pass", "[m.dump() for m in history[-20:]]", 4, "history[-20:]"),
        ("pass", "history if len(history) < 9 else list(history[-9:])", 4, "history[-9:]"),
    ],
)
def test_a_history_that_loses_its_oldest_messages(before: str, sent: str, line: int, slot: str) -> None:
    assert found(LOOP.format(before, sent)) == [("KV403", line, "step", slot)]


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        ("print(history[-5:])", "history"),
        ("title = name(history[-3:])", "[system, *history]"),
        ("pass", "history[-1:]"),
        ("pass", "history[20:]"),
        ("pass", "history[-20:-10]"),
        ("pass", "[system] + names[-20:]"),
    ],
)
def test_histories_that_are_whole(before: str, sent: str) -> None:
    assert found(LOOP.format(before, sent)) == []


@pytest.mark.parametrize(
    ("source", "slot"),
    [
        ("client.chat(tools=[load(f) for f in os.listdir('tools')])", "os.listdir('tools')"),
        ("files = pathlib.Path('tools').glob('*.json')\ntools = list(map(load, files))",
         "pathlib.Path('tools').glob('*.json')"),
        ("body = {'model': 'm', 'tools': list(set(chosen))}", "set(chosen)"),
        ("agent.tools = [REGISTRY[name] for name in {'search', 'book'}]", "{'search', 'book'}"),
    ],
)  # fmt: skip
def test_tools_in_an_order_left_to_chance(source: str, slot: str) -> None:
    assert [(code, text) for code, _, _, text in found(source)] == [("KV201", slot)]


@pytest.mark.parametrize(
    "source",
    [
        "client.chat(tools=[load(f) for f in sorted(os.listdir('tools'))])",
        "tools = sorted((load(f) for f in os.listdir('tools')), key=name)",
        "files = os.listdir('prompts')\ntools = [search, book]",
        "tools = [tool for tool in ALL if tool.name in {'search', 'book'}]",
    ],
)
def test_tools_that_are_sorted_or_listed(source: str) -> None:
    assert found(source) == []
