"""A log as rules look at it: prompts by agent and conversation, their slots, in order of arrival."""

from collections.abc import Sequence
from functools import cached_property

from kvtool.prompts.agents import group
from kvtool.prompts.conversations import number_conversations
from kvtool.prompts.fields import Prompt, read_prompt
from kvtool.prompts.forms import off_form
from kvtool.prompts.slots import (
    Key,
    Slot,
    Strings,
    find_slots,
    head_strings,
    opening_slots,
    opening_strings,
)
from kvtool.prompts.turns import Step, Turns
from kvtool.requests import Request
from kvtool.spans import Rendered
from kvtool.tokens import PromptEncoder


class Corpus:
    """Requests whose prompts can be read as text; all indices count within `requests`."""

    def __init__(self, requests: Sequence[Request], encoder: PromptEncoder, block_size: int) -> None:
        self.block_size = block_size
        self.requests = list(requests)
        self.encoder = encoder
        self.rendered: list[Rendered] = [encoder.render(request) for request in self.requests]
        self.prompts: list[Prompt] = list(map(read_prompt, self.requests, self.rendered))
        self.order = arrival_order(self.requests)
        self.agent = group(self.prompts)
        self.conversation = number_conversations(self.prompts, self.order)

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """Agent -> its requests, by arrival."""
        members: dict[int, list[int]] = {}
        for index in self.order:
            members.setdefault(self.agent[index], []).append(index)
        return members

    @cached_property
    def heads(self) -> dict[int, Strings]:
        """Agent -> the fields of its instructions and tools."""
        return {agent: head_strings(self.prompts, members) for agent, members in self.members.items()}

    @cached_property
    def off_form(self) -> dict[tuple[int, Key], dict[int, str]]:
        """(agent, field) -> request -> the field's text in the form that it usually has."""
        conversation = dict(enumerate(self.conversation))
        found = {}
        for agent, strings in self.heads.items():
            for key, fields in strings.items():
                texts = {index: field[2] for index, field in fields.items()}
                if len(set(texts.values())) > 1 and (odd := off_form(texts, conversation)):
                    found[agent, key] = odd
        return found

    @cached_property
    def slots(self) -> list[Slot]:
        """Every slot of every agent's instructions and tools, seen in texts that have their usual form."""
        slots: list[Slot] = []
        for agent, strings in self.heads.items():
            kept: Strings = {}
            for key, fields in strings.items():
                odd = self.off_form.get((agent, key), {})
                kept[key] = {index: field for index, field in fields.items() if index not in odd}
            slots += find_slots(agent, kept)
        return slots

    @cached_property
    def openings(self) -> list[Slot]:
        """Every slot of the instructions in first user messages, and of prompts that are one text."""
        return [
            slot
            for agent, members in self.members.items()
            for slot in opening_slots(agent, opening_strings(self.prompts, members))
        ]

    @cached_property
    def turns(self) -> Turns:
        """Every prompt's messages as units."""
        return Turns(self.prompts)

    @cached_property
    def steps(self) -> list[Step]:
        """Which request continues which, and what it changed, by arrival."""
        return self.turns.steps(self.order, self.conversation, self.agent)

    @cached_property
    def brought(self) -> set[int]:
        """Ids of the units that some step put into the history instead of behind it."""
        return {
            self.turns.units[step.current][at].id
            for step in self.steps
            for change in step.changes
            if change.kind == "added"
            for at in change.new
        }

    def conversations(self, slot: Slot) -> set[int]:
        """The conversations in which `slot` has a value."""
        return {self.conversation[index] for index in slot.places}

    def has_steps(self, slot: Slot) -> bool:
        """Whether some conversation has two requests with the slot."""
        return len(self.conversations(slot)) < len(slot.places)

    def first(self, indices: Sequence[int]) -> int:
        """The index that stands first in the log."""
        return min(indices)

    def sessions(self, indices: Sequence[int]) -> int:
        """Distinct conversations among `indices`."""
        return len({self.conversation[index] for index in indices})


def readable(request: Request) -> bool:
    """Whether the prompt is there as text, and whole as far as the log can tell."""
    return bool(request.messages) or bool(request.text)


def arrival_order(requests: Sequence[Request]) -> list[int]:
    """Indices by arrival; a request without a time keeps its place behind the one before it."""
    keys, latest = [], -1
    for request in requests:
        latest = latest if request.arrival is None else request.arrival
        keys.append(latest)
    return sorted(range(len(keys)), key=keys.__getitem__)
