"""Rules in words: the list of all, and one rule's page."""

from kvtool.errors import KvtoolError
from kvtool.lint.rule import Rule
from kvtool.lint.rules import RULES


def list_rules() -> str:
    """Code, name and first sentence of every rule, by code."""
    return "".join(f"{rule.code}  {rule.name:24} {rule.docs.what}\n" for rule in _by_code())


def explain(wanted: str) -> str:
    """A rule's page, by its code or name."""
    for rule in _by_code():
        if wanted in (rule.code, rule.name):
            invalid = "".join(f"  found:  {sample.title}\n" for sample in rule.invalid)
            valid = "".join(f"  silent: {sample.title}\n" for sample in rule.valid)
            page = f"{rule.code} {rule.name}\n\n{rule.docs.what}\n\nWhy: {rule.docs.why}\n\n"
            reports = "".join(f"  {one}\n" for one in map(report_url, rule.docs.references))
            seen = f"\nReported\n{reports}" if reports else ""
            return f"{page}Instead: {rule.docs.instead}\n\nSamples\n{invalid}{valid}{seen}"
    raise KvtoolError(f"no rule {wanted!r}", "see kvtool lint --list-rules")


def report_url(reference: str) -> str:
    """Where to read owner/repository#number; GitHub leads from an issue's address to a pull request."""
    return "https://github.com/" + reference.replace("#", "/issues/")


def _by_code() -> list[Rule]:
    return sorted((RULES.load(name) for name in RULES.names()), key=lambda rule: rule.code)
