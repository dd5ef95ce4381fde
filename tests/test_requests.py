"""Request: paths of the source."""

import pytest

from kvtool.requests import Request, Source


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("messages[3].content", "traj[3].content"),
        ("messages", "traj"),
        ("messages[0].content[1].text", "system[1].text"),
        ("messagesX[3]", "messagesX[3]"),
        ("tools[0]", "body.tools[0]"),
        ("text", "text"),
    ],
)
def test_the_longest_mapped_prefix_is_replaced_at_a_border(path: str, source: str) -> None:
    paths = {"messages": "traj", "messages[0].content": "system", "tools": "body.tools"}
    assert Request("r", Source("f", 1), paths=paths).source_path(path) == source


def test_without_a_mapping_paths_are_the_sources_own() -> None:
    assert Request("r", Source("f", 1)).source_path("messages[0].content") == "messages[0].content"
