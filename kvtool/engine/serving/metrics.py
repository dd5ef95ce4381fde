"""Prometheus metrics: latencies as they happen, counts read from the scheduler when they are asked for."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvtool.engine.serving.generation import FinishReason, Generation
from kvtool.engine.serving.journal import event
from kvtool.engine.serving.prefetch import WHYS

TTFT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
GAP = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

COUNTERS = {
    "requests": "Requests that were admitted",
    "prompt_tokens": "Prompt tokens of admitted requests",
    "computed_tokens": "Tokens that went through the model",
    "generated_tokens": "Tokens chosen",
    "dropped_tokens": "Tokens that a GPU computed beyond an answer's end, before the end was known",
    "bad_blocks": "Stored blocks that failed their check and were computed instead",
    "late_blocks": "Stored blocks that did not come in time and were computed instead",
    "demand_blocks": "Blocks that were read from disk or shards when a request needed them",
    "waits": "Requests whose turn had come and whose blocks were still being read",
    "restored_tokens": "Tokens of requests that were put back and found their own blocks again",
    "failed_moves": "Blocks that could not be written to the disk tier",
    "preemptions": "Requests put back because the pool was full",
    "lost_blocks": "Blocks that left the last tier that held them",
    "squeezed_blocks": "Blocks that a quantized device squeezed before their time: no raw slot was left",
    "refused_direct_reads": "Reads past the page cache that the file system did not take so",
    "collisions": "Blocks whose hash belongs to other tokens",
}


class Metrics:
    """The runtime's Observer, and the text of /metrics. `snapshot` is what /kv/stats shows."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._first: dict[int, float] = {}
        self._ttft = Histogram(
            "kvtool_ttft_seconds",
            "Submission to first token",
            ["prefix"],
            buckets=TTFT,
            registry=self._registry,
        )
        self._gap = Histogram(
            "kvtool_inter_token_seconds", "Between two tokens", buckets=GAP, registry=self._registry
        )
        self._whole = Histogram(
            "kvtool_request_seconds", "Submission to end", buckets=TTFT, registry=self._registry
        )

        self._ended = Counter(
            "kvtool_ended_requests",
            "Requests that ended, by how; cancelled: the client left, or the server was stopped",
            ["finish"],
            registry=self._registry,
        )
        for finish in get_args(FinishReason):
            self._ended.labels(finish)
        self._refused = Counter(
            "kvtool_refused_requests", "Requests answered 429: the queue was full", registry=self._registry
        )

    def watch(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Read counts from `snapshot` from now on."""
        self._registry.register(_Counts(snapshot))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def first_token(self, seconds: float, request: Generation) -> None:
        """Cold and warm requests apart: warm when half of the prompt or more was cached."""
        self._first[id(request)] = seconds
        warm = (request.cached or 0) * 2 >= len(request.prompt)
        self._ttft.labels("warm" if warm else "cold").observe(seconds)

    def next_token(self, seconds: float) -> None:
        """One gap."""
        self._gap.observe(seconds)

    def refused(self) -> None:
        """One that found the queue full."""
        self._refused.inc()

    def finished(self, seconds: float, request: Generation) -> None:
        """One request's end."""
        self._whole.observe(seconds)
        self._ended.labels(request.finish).inc()
        first = self._first.pop(id(request), None)
        usage = request.usage()
        event(
            "request",
            finish=request.finish,
            prompt=usage.prompt,
            cached=usage.cached,
            completion=usage.completion,
            ttft=None if first is None else round(first, 4),
            total=round(seconds, 4),
            waited=request.waited,
        )


class _Counts(Collector):
    def __init__(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        counts = now["counts"]
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"kvtool_{name}", text, value=counts.get(name, 0))
        hits = CounterMetricFamily("kvtool_hit_tokens", "Prompt tokens found, by tier", labels=["tier"])
        for tier in ("device", "host", "disk", "shards"):
            hits.add_metric([tier], counts.get(f"hit_tokens_{tier}", 0))
        yield hits
        moves = CounterMetricFamily("kvtool_moved_blocks", "Blocks copied down", labels=["source", "target"])
        for name, value in sorted(counts.items()):
            if name.startswith("moves_"):
                _, source, target = name.split("_")
                moves.add_metric([source, target], value)
        yield moves
        for end, text in (
            ("prefetched", "brought up"),
            ("prefetch_used", "and used"),
            ("prefetch_wasted", "in vain"),
        ):
            ahead = CounterMetricFamily(
                f"kvtool_{end}_blocks", f"Blocks fetched ahead: {text}", labels=["why"]
            )
            for why in WHYS:
                ahead.add_metric([why], counts.get(f"{end}_{why}", 0))
            yield ahead
        used = GaugeMetricFamily("kvtool_blocks_used", "Blocks in a tier", labels=["tier"])
        size = GaugeMetricFamily("kvtool_blocks_capacity", "Blocks that a tier can hold", labels=["tier"])
        for tier, state in now["tiers"].items():
            used.add_metric([tier], state["used"])
            size.add_metric([tier], state["capacity"])
        yield used
        yield size
        yield GaugeMetricFamily("kvtool_running_requests", "Requests in the batch", value=now["running"])
        yield GaugeMetricFamily("kvtool_waiting_requests", "Requests in the queue", value=now["waiting"])
