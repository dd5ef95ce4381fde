"""outlook.json: what prewarm learns of sessions; written once, read back, refused if it is something else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvtool.blocks import BlockHash
from kvtool.cli import main
from kvtool.engine.storage.maintenance import collect_garbage
from kvtool.engine.storage.outlook import OUTLOOK, Expected, Outlook, join, read_outlook, write_outlook
from kvtool.engine.storage.verify import verify
from kvtool.errors import KvtoolError

A, B = BlockHash(bytes(range(16))), BlockHash(bytes(16))
GOLDEN = """{
 "schema": "kvtool.outlook/1",
 "states": {
  "00000000000000000000000000000000": null,
  "000102030405060708090a0b0c0d0e0f": {
   "chain": "00000000000000000000000000000000",
   "probability": 0.75,
   "after": 4.0,
   "until": 9.5
  }
 },
 "otherwise": {
  "chain": null,
  "probability": 0.6,
  "after": 1.0,
  "until": 2.0
 }
}
"""
OURS = Outlook({A: Expected(B, 0.75, 4.0, 9.5), B: None}, Expected(None, 0.6, 1.0, 2.0))


def test_the_file_is_this_text(tmp_path: Path) -> None:
    write_outlook(tmp_path, OURS)
    path = tmp_path / OUTLOOK
    assert path.read_text() == GOLDEN and path.stat().st_mode & 0o777 == 0o600
    assert read_outlook(tmp_path) == OURS
    before = path.stat().st_mtime_ns
    write_outlook(tmp_path, OURS)
    assert path.stat().st_mtime_ns == before
    assert read_outlook(tmp_path / "nowhere") is None


def test_the_deepest_state_decides_even_if_it_expects_nothing() -> None:
    assert OURS.after([A]) == OURS.states[A]
    assert OURS.after([A, B]) is None
    assert OURS.after([BlockHash(b"x" * 16)]) == OURS.otherwise


def test_of_several_the_first_that_knows_a_state_counts() -> None:
    other = Outlook({A: None, BlockHash(b"x" * 16): Expected(A, 0.5, 1.0, 2.0)}, None)
    joined = join([other, OURS])
    assert joined.states == {A: None, B: None, BlockHash(b"x" * 16): Expected(A, 0.5, 1.0, 2.0)}
    assert joined.otherwise == OURS.otherwise and join([OURS, other]).states[A] == OURS.states[A]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", GOLDEN.replace("/1", "/9"), GOLDEN.replace("0f", "0"), GOLDEN.replace("4.0", '"x"')],
)
def test_anything_else_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / OUTLOOK).write_text(text)
    with pytest.raises(KvtoolError, match=OUTLOOK):
        read_outlook(tmp_path)


def test_prewarm_learns_it_and_the_server_fetches_by_it(
    serving: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    """A planner asks, then the coder of the same session, 10 s later: its prompt is what is expected."""
    rows = []
    for number in range(24):
        for turn, agent in enumerate(("planner", "coder")):
            rows.append(
                {
                    "messages": [
                        {
                            "role": "system",
                            "content": f"You are the {agent} of this house, and thorough. " * 4,
                        },
                        {"role": "user", "content": f"Task {number}"},
                    ],
                    "timestamp": 1700000000 + 30 * number + 10 * turn,
                    "session_id": f"s{number}",
                }
            )
    log, folder = tmp_path / "log.jsonl", tmp_path / "shards"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--logs", log, "--model", tiny_model, "--block-size", 16, "--out", folder]
    made = CliRunner().invoke(main, ["prewarm", *map(str, arguments), "--output-format", "json"])
    assert made.exit_code == 0, made.output
    outlook = read_outlook(folder)
    assert outlook is not None and json.loads(made.stdout)["outlook"] == len(outlook.states) == 2
    expected = [one for one in outlook.states.values() if one is not None]
    assert len(expected) == 1 and expected[0].chain in outlook.states
    assert (expected[0].probability, expected[0].after, expected[0].until) == (1.0, 8.0, 12.5)
    assert verify(folder) == [] and collect_garbage(folder) == (0, 0)
    merged = CliRunner().invoke(
        main, ["shards", "merge", str(folder), str(folder), "--out", str(tmp_path / "both")]
    )
    assert merged.exit_code == 0, merged.output
    assert read_outlook(tmp_path / "both") == outlook
    with serving(model=str(tiny_model), shards=folder, device_blocks=60) as running:
        scheduler = running.engine.scheduler
        assert scheduler.foresight._outlook == outlook
        nodes = running.on_scheduler(lambda _: running.engine.store.chain_to(expected[0].chain))
        assert len(nodes) > 5
        text = b"".join(
            running.engine.model.encoder.tokenizer.decode(
                running.engine.index.tokens_of(node).tolist()
            ).encode()
            for node in nodes
        )
        assert b"You are the coder" in text
