"""The model of a whole log: only where it says something about seconds, from its latest part."""

import json

import duckdb
import numpy as np
import pytest

from kvtool.analysis import learned
from kvtool.analysis.build import build_runs
from kvtool.analysis.hit_rates import hit_rates
from kvtool.analysis.prefixes import usage
from kvtool.analysis.reuse_model import ReuseModel, fit
from kvtool.analysis.store import load_analysis, save_analysis
from kvtool.analysis.waits import waits_of
from kvtool.requests import BlockIds, Request, Source


def log(requests, timed=True):
    """Chats of up to six turns that answer after ten seconds, among single requests."""
    random = np.random.default_rng(3)
    rows = []
    for row in range(requests):
        chat, turn = row // 12 * 6 + row % 6, row // 6 % 2
        ids = [chat * 10 + block for block in range(2 + 2 * turn)]
        rows.append(
            Request(
                id=str(row),
                source=Source("t", row),
                arrival=int(1e6 * (row + random.random())) if timed else None,
                block_ids=BlockIds(np.array(ids), 16, 16 * len(ids)),
                output_tokens=20,
            )
        )
    return build_runs(rows, None)


def test_what_is_too_small_or_has_no_times_teaches_nothing():
    assert learned.learn(log(199)) is None
    assert learned.learn(log(240, timed=False)) is None
    model = learned.learn(log(240))
    assert model is not None and model.to_json() == fit(waits_of(log(240).unfolded())).to_json()
    trees = len(model.table.roots)
    assert (
        model.reused.sum() == trees * 240 / 2 * 2
    )  # every second request uses both blocks of its chat again


def test_a_long_log_is_learned_from_its_latest_part(monkeypatch):
    workload = log(600)
    monkeypatch.setattr(learned, "MOST_BLOCKS", int(workload.offsets[-1] - workload.offsets[204]))
    model = learned.learn(workload)
    assert model is not None
    assert model.to_json() == fit(waits_of(workload.unfolded().select(204, 600))).to_json()
    monkeypatch.setattr(learned, "MOST_BLOCKS", int(workload.offsets[-1] - workload.offsets[401]))
    assert learned.learn(workload) is None, "199 requests"


@pytest.mark.parametrize("requests", [240, 120])
def test_an_analysis_has_the_rules_and_the_model(tmp_path, requests):
    workload = log(requests)
    document = {"capacity": [], "block_sizes": [], "hot_prefixes": [], "advice": []}
    path = tmp_path / "a.duckdb"
    save_analysis(path, workload, hit_rates(workload), usage(workload), [], document)
    with duckdb.connect(str(path), read_only=True) as connection:
        rules = connection.execute('SELECT class, "when", uses, reused FROM reuse_rules').fetchall()
        text = connection.execute("SELECT value FROM meta WHERE key = 'reuse_model'").fetchall()
    model = learned.learn(workload)
    if model is None:
        assert requests == 120 and rules == [] and text == []
    else:
        assert [(row[0], json.loads(row[1]), row[2], row[3]) for row in rules] == [
            (rule["class"], rule["when"], rule["uses"], rule["reused"]) for rule in model.rules()
        ]
        assert ReuseModel.from_json(text[0][0]).to_json() == model.to_json()
    assert (load_analysis(path).nodes == workload.unfolded().nodes).all()
