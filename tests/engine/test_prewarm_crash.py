"""kill -9 at every rename and at random moments: verified or nothing, and the rerun gives the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_a_killed_prewarm_leaves_a_verified_folder_and_completes_to_the_same_bytes(
    tiny_model: Path, branching_log: Path, tmp_path: Path, codec: str
) -> None:
    driver = Path(__file__).parent / "prewarm_killer.py"
    result = subprocess.run(
        [sys.executable, driver, tiny_model, branching_log, tmp_path, codec],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    deaths = outcome["deaths"]
    assert [death for death in deaths if death["faults"]] == []
    assert [death["death"] for death in deaths if not death["same"]] == []
    assert outcome["files"] >= 3
    partial = {death["blocks"] for death in deaths} - {0, outcome["blocks"]}
    assert len(partial) >= outcome["files"] - 1, "no death came between two files"
