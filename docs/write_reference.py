"""Write the generated pages of docs/reference: `python docs/write_reference.py`.

commands.md is every command's own --help, rules.md every rule's own documentation. A test compares the
pages with what this file would write.
"""

from pathlib import Path

from click.testing import CliRunner

from kvtool.cli import CommandGroup, main
from kvtool.lint.rules import RULES

REFERENCE = Path(__file__).resolve().parent / "reference"


def commands_page() -> str:
    """One section per command, in the order of a user's story."""
    assert isinstance(main, CommandGroup)
    page = "# Commands\nWritten by `docs/write_reference.py` from each command's `--help`.\n"
    for name in main.list_commands(main.make_context("kvtool", [], resilient_parsing=True)):
        page += f"\n## `{name}`\n```\n{help_text(name)}```\n"
    return page


def help_text(name: str) -> str:
    """The help of a command at 100 columns."""
    result = CliRunner().invoke(
        main, [name, "--help"], prog_name="kvtool", terminal_width=100, max_content_width=100
    )
    assert result.exit_code == 0, result.output
    return result.output


def rules_page() -> str:
    """One section per rule, by code."""
    page = (
        "# Lint rules\nWritten by `docs/write_reference.py` from the rules themselves. "
        "Severity follows the tokens lost, measured by replay.\n"
    )
    for rule, module in sorted(((RULES.load(name), name) for name in RULES.names()), key=lambda r: r[0].code):
        page += f"\n## {rule.code} `{module}`\n"
        page += f"{rule.docs.what}\n\n**Why.** {rule.docs.why}\n\n**Instead.** {rule.docs.instead}\n"
    return page


def write() -> None:
    """Both pages."""
    (REFERENCE / "commands.md").write_text(commands_page(), encoding="utf-8")
    (REFERENCE / "rules.md").write_text(rules_page(), encoding="utf-8")


if __name__ == "__main__":
    write()
