"""Write the generated pages of docs/reference: `python docs/write_reference.py`.

commands.md is every command's own --help, rules.md every rule's own documentation. A test compares the
pages with what this file would write.
"""

from pathlib import Path

from click.testing import CliRunner

from kvtool.cli import CommandGroup, main
from kvtool.lint.explain import report_url
from kvtool.lint.rule import Rule
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
        page += f"{rule.docs.what}\n\n**Why.** {rule.docs.why}\n"
        page += example(rule)
        page += f"\n**Instead.** {rule.docs.instead}\n"
        if rule.docs.references:
            reports = (f"[{one}]({report_url(one)})" for one in rule.docs.references)
            page += f"\n**Reported.** {', '.join(reports)}\n"
    return page


def example(rule: Rule) -> str:
    """What the rule finds in its first sample, and a sample on which it is silent."""
    if not rule.invalid:
        return ""
    found, silent = rule.invalid[0], rule.valid[0]
    at = f" at `{found.path}`" if found.path else ""
    value = f": `{' '.join(found.slot.split())}`" if found.slot.strip() else ""
    return f"\n**Example.** Found: {found.title}{at}{value}. Silent: {silent.title}.\n"


def write() -> None:
    """Both pages."""
    (REFERENCE / "commands.md").write_text(commands_page(), encoding="utf-8")
    (REFERENCE / "rules.md").write_text(rules_page(), encoding="utf-8")


if __name__ == "__main__":
    write()
