"""The house rules that no linter knows: life without torch, light --help, what every registry entry owes."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtool.cli import COMMANDS
from kvtool.lint.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "samples/airline-chat.jsonl"
HEAVY = {"duckdb", "fastapi", "httpx", "numba", "numpy", "pyarrow", "tokenizers", "torch", "transformers"}


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to every installed package but torch: the base install."""
    folder = tmp_path_factory.mktemp("base-install")
    sites = [Path(entry) for entry in sys.path if Path(entry).name == "site-packages"]
    for package in (package for site in sites for package in site.iterdir()):
        if not package.name.startswith(("torch", "functorch")) and not (folder / package.name).exists():
            (folder / package.name).symlink_to(package)
    return folder


def run_without_torch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """kvtool with `folder` as its only site-packages (-S keeps the real one out)."""
    code = f"import sys; sys.path += {[str(ROOT), str(folder)]!r}; from kvtool.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )


def test_analyze_works_where_torch_is_not_installed(without_torch: Path) -> None:
    result = run_without_torch(without_torch, "analyze", str(SAMPLE), "--output-format", "json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "kvtool.analysis/1"
    assert document["source"]["requests"] == 77
    assert document["tokenizer"] == {**document["tokenizer"], "name": "embedded", "exact": True}


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--model", "embedded"),
        ("prewarm", "--logs", str(SAMPLE), "--out", "never-written"),
        ("demo",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_engines_commands_name_the_extra_where_torch_is_not_installed(
    without_torch: Path, arguments: tuple[str, ...]
) -> None:
    result = run_without_torch(without_torch, *arguments)
    assert result.returncode == 2, result.stderr
    assert "kvtool[engine]" in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("never-written").exists()


@pytest.mark.parametrize("command", [None, *COMMANDS.names()])
def test_help_imports_nothing_heavy_and_shows_an_example(command: str | None) -> None:
    arguments = ["--help"] if command is None else [command, "--help"]
    code = (
        "import sys\nfrom kvtool.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"
    assert f"kvtool {command or 'analyze'} " in result.stdout.partition("Usage:")[2].partition("\n")[2]


def modules(package: str) -> list[str]:
    """Entries of a registry, as module names."""
    return sorted(
        path.stem for path in (ROOT / "kvtool" / package).glob("*.py") if not path.stem.startswith("_")
    )


def entries(*packages: str) -> Iterator[tuple[str, str]]:
    """(package, module) of every registry entry."""
    for package in packages:
        assert modules(package), f"{package}: the registry is empty or has moved"
        yield from ((package, module) for module in modules(package))


DOCUMENTED_IN = {
    "logs/formats": "formats.md",
    "cache/policies": "policies.md",
    "lint/rules": "rules.md",
    "engine/storage/codecs": "codecs.md",
    "renderers": "renderers.md",
    "commands": "commands.md",
}


@pytest.mark.parametrize(("package", "module"), list(entries(*DOCUMENTED_IN)))
def test_every_entry_has_its_line_in_the_docs(package: str, module: str) -> None:
    page = (ROOT / "docs/reference" / DOCUMENTED_IN[package]).read_text(encoding="utf-8")
    assert f"`{module.replace('_', '-')}`" in page


@pytest.mark.parametrize(
    ("package", "module"), list(entries("logs/formats", "cache/policies", "renderers", "commands"))
)
def test_every_entry_has_its_test_file(package: str, module: str) -> None:
    room = ROOT / "tests" / package.split("/")[0]
    assert list(room.rglob(f"test_{module}*.py")), f"no test_{module}*.py under {room}"


@pytest.mark.parametrize(("package", "module"), list(entries("logs/formats", "engine/storage/codecs")))
def test_what_lies_on_disk_has_a_golden_sample(package: str, module: str) -> None:
    """Old files stay readable: the bytes of today are kept and read by the room's tests."""
    folder = ROOT / "tests/data" / package.split("/")[-1]
    assert list(folder.glob(f"{module.replace('_', '-')}[-.]*")), f"no sample of {module} in {folder}"


def test_generated_pages_are_current() -> None:
    """Words are compared: click's versions wrap lines differently."""
    spec = importlib.util.spec_from_file_location("write_reference", ROOT / "docs/write_reference.py")
    assert spec is not None and spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    for name, text in (("commands.md", pages.commands_page()), ("rules.md", pages.rules_page())):
        written = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
        assert written.split() == text.split(), f"run python docs/write_reference.py: {name} is out of date"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"])
def test_paths_in_the_documents_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:kvtool|tests|docs|samples)/[\w./-]*)`", text)
    named += re.findall(r"\]\(([\w./-]+)\)", text)
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("module", modules("lint/rules"))
def test_every_rule_carries_its_samples_and_its_page(module: str) -> None:
    """tests/lint/test_rules.py runs the samples; a rule that no log can show has a test file instead."""
    rule = RULES.load(module.replace("_", "-"))
    assert (rule.valid and rule.invalid) or (ROOT / f"tests/lint/test_{module}.py").exists()
    assert rule.docs.what and rule.docs.why and rule.docs.instead
