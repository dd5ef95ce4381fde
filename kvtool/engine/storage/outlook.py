"""outlook.json beside shards: what a session asks next and when, learned from a log, to prefetch by.

A state is the hash of the deepest prefix that sessions of the log shared; with it stands the one thing that
is likely enough to follow. A live prompt is judged by the deepest state on its chain that the log had
evidence for, or by all states together. Like the reuse model it only saves time: the manifest does not
list it, and a wrong one costs reads and never an answer.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtool.analysis.sessions import infer_sessions
from kvtool.analysis.transitions import ANY, GROWS, Transitions, learn_transitions
from kvtool.analysis.workload import Workload
from kvtool.blocks import BlockHash, child_hash
from kvtool.engine.storage.files import DAMAGED, drop_damaged, read_companion, write_companion
from kvtool.engine.storage.identity import Identity
from kvtool.errors import KvtoolError

OUTLOOK = "outlook.json"
SCHEMA = "kvtool.outlook/1"


@dataclass(frozen=True, slots=True)
class Expected:
    """`chain`: hash of the last block to fetch, None for the session's own prompt, which grows.

    probability: of it, among all that followed. after, until: seconds from the request's start at which to
    fetch, and at which to think no longer of it.
    """

    chain: BlockHash | None
    probability: float
    after: float
    until: float


@dataclass(frozen=True)
class Outlook:
    """states: by hash; None where nothing is likely. otherwise: for prompts without a state here."""

    states: Mapping[BlockHash, Expected | None]
    otherwise: Expected | None

    def after(self, chain: Iterable[BlockHash]) -> Expected | None:
        """What follows a prompt with these blocks, front to back."""
        found = self.otherwise
        for block in chain:
            if block in self.states:
                found = self.states[block]
        return found

    def to_json(self) -> str:
        """Canonical text; rows in order of their hashes."""
        rows = {state.hex(): _row(expected) for state, expected in sorted(self.states.items())}
        document = {"schema": SCHEMA, "states": rows, "otherwise": _row(self.otherwise)}
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str) -> "Outlook":
        """Inverse of `to_json`; KvtoolError, beginning with `name`, on anything else."""
        try:
            document = json.loads(text)
            if document["schema"] != SCHEMA:
                raise KvtoolError(f"{name}: schema is {document['schema']!r}, not {SCHEMA}", DAMAGED)
            states = {_hash(state): _expected(row) for state, row in document["states"].items()}
            return cls(states, _expected(document["otherwise"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise KvtoolError(f"{name}: damaged: {type(error).__name__} {error}", DAMAGED) from error


def learn_outlook(workload: Workload, identity: Identity) -> Outlook | None:
    """From a whole log, under `identity`'s roots. None where it lacks times, or nothing is likely."""
    if (workload.arrival < 0).any() or not workload.requests:
        return None
    if (workload.session < 0).all():
        workload = infer_sessions(workload)
    model = learn_transitions(workload, workload.requests)
    evident = [
        state for state, seen in model.follows.items() if state >= 0 and seen.total() >= model.config.evidence
    ]
    hashes = _Hashes(workload, identity)
    states = {hashes.of(state): _predicted(model, state, hashes) for state in evident}
    outlook = Outlook(states, _predicted(model, ANY, hashes))
    return outlook if outlook.otherwise or any(states.values()) else None


def join(outlooks: Sequence[Outlook]) -> Outlook:
    """One outlook for the blocks of several logs; the first that knows a state counts."""
    states: dict[BlockHash, Expected | None] = {}
    for outlook in reversed(outlooks):
        states.update(outlook.states)
    return Outlook(states, next((one.otherwise for one in outlooks if one.otherwise is not None), None))


def write_outlook(folder: Path, outlook: Outlook | None) -> None:
    """Write it over an older one. With None, of a log that tells nothing, a sound one stays."""
    if outlook is None:
        drop_damaged(folder / OUTLOOK, lambda: read_outlook(folder))
    else:
        write_companion(folder / OUTLOOK, outlook.to_json())


def read_outlook(folder: Path) -> Outlook | None:
    """The outlook of `folder`, None if it has none. KvtoolError if the file is no such thing."""
    path = folder / OUTLOOK
    text = read_companion(path)
    return None if text is None else Outlook.from_json(text, str(path))


class _Hashes:
    """Hashes of a workload's nodes under a model's roots; tenants have roots of their own."""

    def __init__(self, workload: Workload, identity: Identity) -> None:
        self._workload = workload
        self._identity = identity
        self._known: dict[int, BlockHash] = {}

    def of(self, node: int) -> BlockHash:
        """The node's hash; those above it are kept."""
        path = []
        while node >= 0 and node not in self._known:
            path.append(node)
            node = int(self._workload.parent[node])
        for below in reversed(path):
            _, tenant = self._workload.spaces[int(self._workload.node_space[below])]
            above = self._known[node] if node >= 0 else self._identity.root(tenant or "")
            self._known[below] = child_hash(above, self._workload.words[below])
            node = below
        return self._known[node]


def _predicted(model: Transitions, state: int, hashes: _Hashes) -> Expected | None:
    found = model.expected(state)
    if found is None:
        return None
    what, share, after, until = found
    chain = None if what == GROWS else hashes.of(what)
    return Expected(chain, round(share, 6), round(after, 6), round(until, 6))


def _row(expected: Expected | None) -> dict[str, Any] | None:
    if expected is None:
        return None
    return {
        "chain": None if expected.chain is None else expected.chain.hex(),
        "probability": expected.probability,
        "after": expected.after,
        "until": expected.until,
    }


def _expected(row: dict[str, Any] | None) -> Expected | None:
    if row is None:
        return None
    chain = None if row["chain"] is None else _hash(row["chain"])
    return Expected(chain, float(row["probability"]), float(row["after"]), float(row["until"]))


def _hash(text: str) -> BlockHash:
    digest = bytes.fromhex(text)
    if len(digest) != 16:
        raise ValueError(f"{text!r} is no block's hash")
    return BlockHash(digest)
