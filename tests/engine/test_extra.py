"""What is said where the engine is not installed, however its packages are missing."""

import subprocess
import sys

import pytest

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""
EMPTIED = "import sys; sys.modules['torch'] = None"


@pytest.mark.parametrize("prevent", [BLOCKER, EMPTIED])
@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_command_without_the_engine_names_the_extra(prevent: str, command: str) -> None:
    run = f"{prevent}\nfrom kvtool.cli import main\nmain([{command!r}])"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"kvtool {command} needs the engine, which is not installed (no torch)" in done.stderr
    assert "kvtool[engine]" in done.stderr
    assert "Traceback" not in done.stderr
