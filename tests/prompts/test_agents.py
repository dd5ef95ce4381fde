"""Grouping requests by agent: variants together, others apart."""

from kvtool.prompts.agents import Agents

BASE = "\n".join(f"Rule {n}: do the thing number {n} with care and never twice." for n in range(20))


def test_variants_of_one_text_are_one_agent() -> None:
    agents = Agents()
    numbers = {agents.number("system", f"Now: 10:{n:02d}\n{BASE}\nUser: {n}") for n in range(50)}
    assert numbers == {0}


def test_one_long_line_with_a_clock_in_it_is_one_agent() -> None:
    agents = Agents()
    line = "You are a hotel, the time is {}, answer briefly, be kind, never invent a price or a rule."
    assert {agents.number("system", line.format(f"10:{n}")) for n in range(10, 20)} == {0}


def test_other_instructions_are_another_agent() -> None:
    agents = Agents()
    assert agents.number("system", BASE) == 0
    assert agents.number("system", "Generate a title of at most five words for the conversation.") == 1
    assert agents.number("system", "You translate menus from Italian into plain English, word by word.") == 2
    assert agents.number("user", BASE) == 3
    assert agents.number("system", BASE + "\nBe brief.") == 0


def test_one_long_line_that_opens_with_a_clock_is_one_agent() -> None:
    agents = Agents()
    line = "{} You are a hotel, answer briefly, be kind. Never invent a price or a rule, whatever is asked."
    assert {agents.number("system", line.format(f"{n}:{n}")) for n in range(10, 20)} == {0}
