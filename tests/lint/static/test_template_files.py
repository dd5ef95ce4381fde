"""Jinja, text, YAML, JSON and tool schemas: pieces, places, causes."""

import json
from pathlib import Path

import pytest

from kvtool.errors import KvtoolError
from kvtool.lint.run import LintConfig, lint
from kvtool.lint.static.files import check_file
from kvtool.tokens import load_encoder

RULES = "Never invent a price, ask before you book, and hand over to a person when you cannot help. " * 3


def found(tmp_path: Path, name: str, source: str) -> list[tuple[str, int, str]]:
    path = tmp_path / name
    path.write_text(source, encoding="utf-8")
    return [(one.code, one.location.row, one.slot) for one in check_file(path)]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.j2", f"Hello.\nIt is {{{{ now() }}}}.\n{RULES}", [("KV101", 2, "It is {now()}")]),
        ("a.j2", f"{{% set t = utcnow() %}}At {{{{ t }}}}:\n{RULES}", [("KV101", 1, "At {t}")]),
        ("a.j2", f"{{% set a = 'x' %}}At {{{{ a }}}}:\n{RULES}", []),
        ("a.j2", f"{RULES}{{{{ now() }}}}", []),
        ("a.j2", f"{{% if v %}}{{{{ session_id }}}}{{% endif %}}{RULES}", [("KV104", 1, "{session_id}")]),
        (
            "a.md",
            f"# Agent\n\nWorking directory: {{cwd}}\n\n{RULES}",
            [("KV105", 3, "Working directory: {cwd}")],
        ),
        ("a.txt", f"Customer: ${{who}}\n{RULES}", [("KV107", 1, "Customer: {who}")]),
        ("a.txt", f"Date: $DATE\n{RULES}", [("KV102", 1, "Date: {DATE}")]),
        ("a.txt", f"At $current_time_utc, answer.\n{RULES}", [("KV101", 1, "At {current_time_utc}")]),
        ("a.txt", f"Print neither $PATH nor $TIMEOUT, and $40 is a price.\n{RULES}", []),
        ("a.txt", f"Tokens left: <<n>>\n{RULES}", [("KV106", 1, "Tokens left: {n}")]),
        ("a.txt", f"\ufeffNow: {{now}}\n{RULES}", [("KV101", 1, "Now: {now}")]),
        ("a.txt", f"{RULES}\nToday is {{date}}.", []),
        ("a.txt", 'Answer in JSON such as {"a": 1}.' + RULES, []),
        ("a.yaml", f"system: |\n  Date: {{{{date}}}}\n  {RULES}\n", [("KV102", 2, "Date: {date}")]),
        (
            "a.json",
            json.dumps({"messages": [{"role": "system", "content": "{memory}\n" + RULES}]}),
            [("KV301", 1, "{memory}")],
        ),
    ],
)
def test_templates(tmp_path: Path, name: str, source: str, expected: list[tuple[str, int, str]]) -> None:
    assert found(tmp_path, name, source) == expected


def test_places_are_paths_in_structured_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"messages": [{"role": "system", "content": "At {now} " + RULES}]}))
    (one,) = check_file(path)
    assert (one.location.path, one.location.role) == ("messages[0].content", "system")
    assert one.severity == "warning"
    assert one.lost_tokens == len(RULES) // 4
    assert (one.location.start, one.location.end, one.examples) == (3, 8, ["{now}"])
    path.with_suffix(".yaml").write_text(f"system: |\n  Be kind.\n  It is {{{{now}}}}.\n  {RULES}\n")
    (two,) = check_file(path.with_suffix(".yaml"))  # the string is indented there
    assert (two.location.row, two.location.start, two.location.end) == (3, 15, 22)
    assert two.examples == ["{{now}}"]


def test_much_stable_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("It is {time}. " + RULES * 10)
    assert [one.severity for one in check_file(path)] == ["error"]


def test_a_tool_that_is_there_twice(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "book", "parameters": {}}}
    assert [code for code, _, _ in found(tmp_path, "tools.json", json.dumps([tool, tool], indent=1))] == [
        "KV203"
    ]
    assert found(tmp_path, "tools.json", json.dumps([tool])) == []


@pytest.mark.parametrize(("name", "source"), [("a.j2", "{{ x"), ("a.json", "{"), ("a.yaml", "a: [")])
def test_unreadable_files_are_named(tmp_path: Path, name: str, source: str) -> None:
    with pytest.raises(KvtoolError, match=name):
        found(tmp_path, name, source)


def test_addresses_hold_no_slots(tmp_path: Path) -> None:
    assert found(tmp_path, "api.md", f"GET /users/{{user_id}}/runs/{{run_id}}\n{RULES}") == []


def test_a_folder_s_documentation_is_not_looked_at_and_its_broken_files_are_noted(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    for name in ("README.md", "prompts/agent.md", "notes.md"):
        (tmp_path / name).write_text(f"Session {{session_id}}.\n{RULES}")
    (tmp_path / "broken.py").write_text("def f(:\n")
    result = lint([str(tmp_path)], LintConfig(), lambda: load_encoder("bytes"))
    assert [one.location.file for one in result.findings] == [str(tmp_path / "prompts/agent.md")]
    assert len(result.notes) == 1 and "broken.py, line 1" in result.notes[0]
    named = lint([str(tmp_path / "notes.md")], LintConfig(), lambda: load_encoder("bytes"))
    assert [one.code for one in named.findings] == ["KV104"]
    with pytest.raises(KvtoolError, match=r"broken\.py, line 1"):
        lint([str(tmp_path / "broken.py")], LintConfig(), lambda: load_encoder("bytes"))


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_a_chat_with_slots_that_was_never_sent_is_a_template(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    chat = {"model": "m", "messages": [{"role": "system", "content": "At {now} " + RULES}]}
    path.write_text(json.dumps(chat))
    result = lint([str(path)], LintConfig(), lambda: load_encoder("bytes"))
    assert [one.code for one in result.findings] == ["KV101"]
    assert (result.logs, result.templates, result.hit_rate) == ([], [str(path)], None)
    for more in ({"timestamp": 1_700_000_000}, {"response": {"choices": [{"message": {"content": "x"}}]}}):
        path.write_text(json.dumps({**chat, **more}))
        assert lint([str(path)], LintConfig(), lambda: load_encoder("bytes")).logs == [str(path)]
