"""What would help most, from simulated rows: each piece with its evidence and the gain that it promises.

A gain is in points of the token hit rate. What is asked first: do replicas waste what one cache would keep;
then sizes; then the policy; and what no cache can mend is in the prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvtool.analysis.advice import WORTH_SAYING, block_size_advice
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.rates import Rates
from kvtool.analysis.workload import Workload

Piece = dict[str, Any]

POOR = 0.3
"""Below this even an unbounded cache does little: the prompts are to blame."""

SHARES = (0.9, 0.95, 0.99)

MIDDLING = (0.2, 0.9)
"""Shares of what an unbounded cache serves between which the ranking of blocks decides."""

VARIANTS = (("tau", 30), ("tau", 300), ("tau", 1000), ("rebuild", 0.5), ("frequency", 1.0), ("sharing", 1.0))
"""Weights of `cost` that are tried, one at a time."""


class Simulated(Protocol):
    """What advice asks of a simulation."""

    @property
    def workload(self) -> Workload:
        """The log."""
        ...

    @property
    def config(self) -> Any:
        """A SimulateConfig."""
        ...

    @property
    def curve(self) -> LruCurve:
        """One LRU cache at all capacities."""
        ...

    @property
    def unbounded(self) -> Rates:
        """Without a capacity."""
        ...

    def row(self, policy: str, capacity: int, routing: str | None = None) -> Piece:
        """One setting, as in the document."""
        ...

    def single_cache(self, policy: str, capacity: int) -> Piece:
        """The row of one cache with the capacity of all replicas."""
        ...

    def varied(self, **changes: Any) -> "Simulated":
        """The same log under other settings."""
        ...


@dataclass(frozen=True)
class Known:
    """What an analysis says beside the workload. block_sizes: rows of `sweep`; findings: as in its JSON;
    tokens, normalized: hit rate as logged and with all safe fixes, None where lint has not run."""

    block_sizes: Sequence[Mapping[str, Any]] = ()
    findings: Sequence[Mapping[str, Any]] = ()
    tokens: float | None = None
    normalized: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Known":
        """From the JSON of a saved analysis."""
        rate = document["hit_rate"]
        return cls(document["block_sizes"], document["findings"], rate["tokens"], rate["normalized_tokens"])


def advise(simulation: "Simulated", rows: Sequence[Piece], known: Known) -> list[Piece]:
    """Advice for the smallest capacity among `rows`, in the order in which to try it."""
    online = [row for row in rows if row["capacity_blocks"] == rows[0]["capacity_blocks"]]
    optimum = next((row["tokens"] for row in online if row["policy"] == "belady"), None)
    online = [row for row in online if row["policy"] != "belady"]
    pieces = [
        _routing(simulation, online),
        block_size_advice(simulation.workload.block_size, known.block_sizes),
        _capacity(simulation, online),
        _policy(online, optimum),
        _weights(simulation, online),
        _prompts(simulation, known),
    ]
    return [piece for piece in pieces if piece is not None]


def _routing(simulation: "Simulated", online: Sequence[Piece]) -> Piece | None:
    config = simulation.config
    if config.replicas == 1 or not online:
        return None
    from kvtool.analysis.routing import ROUTINGS  # compiled at first import

    present = max(online, key=lambda row: row["tokens"])
    policy, capacity = present["policy"], present["capacity_blocks"]
    single = simulation.single_cache(policy, capacity)
    others = [simulation.row(policy, capacity, routing) for routing in ROUTINGS]
    best = max(others, key=lambda row: row["tokens"])
    gain = best["tokens"] - present["tokens"]
    if gain < WORTH_SAYING:
        return None
    return {
        "code": "routing",
        "text": f"{config.replicas} replicas routed by {present['routing']} serve "
        f"{present['tokens']:.1%}, one cache of their size {single['tokens']:.1%}: routing by "
        f"{best['routing']} gains {gain:.1%}.",
        "evidence": {
            "present": present["tokens"],
            "single_cache": single["tokens"],
            "by_routing": {row["routing"]: row["tokens"] for row in others},
            "gain": round(gain, 6),
        },
    }


def _capacity(simulation: "Simulated", online: Sequence[Piece]) -> Piece | None:
    curve = simulation.curve
    need = {f"{share:.0%}": curve.capacity_for(share) for share in SHARES}
    blocks = need["90%"]
    capacity = online[0]["capacity_blocks"] if online else blocks
    gain = curve.at(blocks).tokens - curve.at(capacity).tokens
    if blocks <= capacity or gain < WORTH_SAYING:
        return None
    more = ""
    if simulation.config.replicas > 1:
        more += " Replicas need more: each holds what all share."
    if (simulation.workload.arrival < 0).all():
        more += " The log has no times, so sessions that in truth overlap need more than this."
    return {
        "code": "capacity",
        "text": f"{blocks:,} blocks instead of {capacity:,} gain {gain:.1%} in one cache under lru, 90% of "
        f"what an unbounded one serves; {need['95%']:,} keep 95% and {need['99%']:,} keep 99%.{more}",
        "evidence": {
            "blocks": need,
            "tokens": {name: round(curve.at(size).tokens, 6) for name, size in need.items()},
            "gain": round(gain, 6),
        },
    }


def _policy(online: Sequence[Piece], optimum: float | None) -> Piece | None:
    rates = {row["policy"]: row["tokens"] for row in online}
    best = max(rates, key=lambda name: rates[name], default="lru")
    gain = rates.get(best, 0.0) - rates.get("lru", 1.0)
    if gain < WORTH_SAYING:
        return None
    return {
        "code": "policy",
        "text": f"With {online[0]['capacity_blocks']:,} blocks, {best} serves {rates[best]:.1%} "
        f"where lru serves {rates['lru']:.1%}.",
        "evidence": {"by_policy": rates, "optimum": optimum, "gain": round(gain, 6)},
    }


def _weights(simulation: "Simulated", online: Sequence[Piece]) -> Piece | None:
    """Another weight of `cost`, where the rate is middling: one at a time, judged on this log."""
    if not online:
        return None
    present = max(online, key=lambda row: row["tokens"])
    reached = present["tokens"] / max(simulation.unbounded.tokens, 1e-9)
    if not MIDDLING[0] <= reached < MIDDLING[1]:
        return None
    rates = {
        f"{name}={value:g}": simulation.varied(weights=((name, value),)).row("cost", capacity)["tokens"]
        for capacity in [present["capacity_blocks"]]
        for name, value in VARIANTS
    }
    best = max(rates, key=lambda name: rates[name])
    gain = rates[best] - present["tokens"]
    if gain < WORTH_SAYING:
        return None
    return {
        "code": "policy-weight",
        "text": f"With {present['capacity_blocks']:,} blocks, --policy cost --cost-weight {best} serves "
        f"{rates[best]:.1%} of this log where {present['policy']} serves {present['tokens']:.1%}; check it "
        "on another day's log.",
        "evidence": {"by_weight": rates, "present": present["tokens"], "gain": round(gain, 6)},
    }


def _prompts(simulation: "Simulated", known: Known) -> Piece | None:
    """Findings of the analysis with their price; without one, only a rate that no cache can raise."""
    unbounded = simulation.unbounded.tokens
    priced = {
        finding["code"]: round(finding["hit_rate_if_fixed"] - known.tokens, 6)
        for finding in sorted(known.findings, key=lambda finding: finding["hit_rate_if_fixed"])
        if known.tokens is not None
    }
    worth = {code: gain for code, gain in reversed(priced.items()) if gain >= WORTH_SAYING}
    safe = None if known.tokens is None or known.normalized is None else known.normalized - known.tokens
    if not worth and unbounded >= POOR:
        return None
    text = f"Even an unbounded cache serves only {unbounded:.1%}: " if unbounded < POOR else ""
    if worth:
        code, gain = next(iter(worth.items()))
        text += f"fixing {code} alone gains {gain:.1%} of the prompt tokens, see kvtool lint"
        text += f"; all safe fixes gain {safe:.1%}, see kvtool normalize." if safe else "."
    elif simulation.workload.ready_made:
        text += "look for what breaks the prefixes in the log that this trace was made from."
    else:
        text += "see what breaks the prefixes with kvtool lint."
    evidence: Piece = {"unbounded": round(unbounded, 6), "findings": worth}
    return {
        "code": "prompts",
        "text": text[:1].upper() + text[1:],
        "evidence": {**evidence, "gain": max(worth.values()) if worth else None},
    }
