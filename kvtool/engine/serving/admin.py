"""/kv: look into the cache and steer it, with the admin's key."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from kvtool.blocks import BlockHash, TokenIds
from kvtool.cache.pool import Pool
from kvtool.cache.tiers import Tier
from kvtool.engine.serving.api import ApiError, EvictRequest, PinRequest, PrefetchRequest
from kvtool.engine.serving.engine import Engine
from kvtool.engine.serving.events import Event
from kvtool.engine.serving.generation import Generation
from kvtool.engine.serving.hot import hot_prefixes
from kvtool.engine.serving.intake import Arrival, Intake
from kvtool.engine.serving.keys import Keys
from kvtool.engine.serving.prefetch import WHYS
from kvtool.engine.serving.respond import Deltas, submit
from kvtool.engine.serving.scheduler import Scheduler
from kvtool.engine.serving.text import Detokenizer, StopFilter

LOOK = 0.5
"""Seconds between two looks whether the server stops, for who follows its events."""


def snapshot(engine: Engine) -> dict[str, Any]:
    """Counts and sizes now. Read from any thread: numbers may be a step apart from each other."""
    scheduler = engine.scheduler
    pool = scheduler.pool
    counts = {**scheduler.counts, **engine.store.counts()}
    counts["lost_blocks"] = pool.lost
    counts["collisions"] = engine.index.collisions
    hits = sum(counts.get(f"hit_tokens_{tier.name.lower()}", 0) for tier in Tier)
    tiers = {"device": _tier(pool.device)}
    tiers.update({tier.name.lower(): _tier(lower) for tier, lower in pool.lower.items()})
    if engine.shards is not None:
        rows = len(engine.shards.rows)
        tiers["shards"] = {"capacity": rows, "used": rows, "held": 0}
    return {
        "model": engine.model_id,
        "block_size": engine.index.block_size,
        "block_bytes": engine.tiers.block_bytes,
        "device_codec": engine.config.device_codec,
        "tier_codec": engine.config.codec_below,
        "policy": engine.config.policy,
        "root": engine.identity.root().hex(),
        "encoder": engine.model.encoder.fingerprint,
        "tiers": tiers,
        "known_blocks": len(engine.index),
        "running": len(scheduler.running),
        "waiting": max(engine.runtime.inside - len(scheduler.running), 0),
        "pins": len(scheduler.pins),
        "kept_sessions": len(scheduler.kept),
        "counts": counts,
        "prefetch": _prefetch(counts),
        "hit_rate": {"tokens": hits / counts["prompt_tokens"] if counts.get("prompt_tokens") else 0.0},
    }


def _prefetch(counts: dict[str, int]) -> dict[str, float]:
    """recall: of the blocks that had to come from disk or shards, those that were there before the request;
    waste: of the blocks fetched ahead and settled, those that nobody used in time."""
    used, wasted = (sum(counts.get(f"prefetch_{end}_{why}", 0) for why in WHYS) for end in ("used", "wasted"))
    needed = used + counts.get("demand_blocks", 0)
    settled = used + wasted
    return {"recall": used / needed if needed else 0.0, "waste": wasted / settled if settled else 0.0}


def _tier(pool: Pool) -> dict[str, int]:
    owner = pool.state.owner
    return {
        "capacity": pool.capacity,
        "used": int((owner >= 0).sum()),
        "held": pool.capacity - pool.available(),
    }


def admin_routes(engine: Engine, intake: Intake, keys: Keys) -> APIRouter:
    """The routes under /kv."""
    router = APIRouter(prefix="/kv")

    def admin(request: Request) -> None:
        keys.admin(request.headers.get("authorization"))
        if not request.headers.get("content-type", "").startswith("application/json"):
            # no web page can send this type across origins without being asked first
            raise ApiError(415, "POST application/json")

    @router.get("/stats")
    async def stats(request: Request) -> dict[str, Any]:
        keys.admin(request.headers.get("authorization"))  # counts tell what others do
        return snapshot(engine)

    @router.get("/events", include_in_schema=False)
    async def events(request: Request) -> StreamingResponse:
        """KV events as JSON lines: {"ts": ..., "events": [...]}, the first one with all that is there."""
        keys.admin(request.headers.get("authorization"))
        batches: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listener(time: float, happened: list[Event]) -> None:
            line = json.dumps({"ts": time, "events": happened}, separators=(",", ":")) + "\n"
            if not loop.is_closed():
                loop.call_soon_threadsafe(batches.put_nowait, line)

        async def lines() -> AsyncIterator[str]:
            try:
                while not engine.runtime.draining:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK):
                            batch = await batches.get()
                        yield batch
            finally:
                engine.runtime.call(lambda _: engine.events.leave(listener))

        await _call(engine, lambda _: engine.events.listen(listener))
        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @router.get("/policy")
    async def policy(request: Request) -> dict[str, Any]:
        """What blocks are ranked by, to predict this server's hits elsewhere."""
        keys.admin(request.headers.get("authorization"))
        now = engine.scheduler.pool.device.policy
        return {"name": now.name, "parameters": list(now.parameters), "ages": now.ages}

    @router.get("/blocks")
    async def blocks(
        request: Request,
        tier: str = Query("device", pattern="^(device|host|disk|shards)$"),
        offset: int = Query(0, ge=0),
        limit: int = Query(1000, ge=1, le=10_000),
    ) -> dict[str, Any]:
        keys.admin(request.headers.get("authorization"))
        if tier == "shards":
            rows = engine.shards.rows if engine.shards is not None else []
            found = [{"hash": row.hash.hex(), "depth": row.depth} for row in rows]
            return _page(found, offset, limit)
        return _page(await _call(engine, lambda s: _blocks(engine, s, Tier[tier.upper()])), offset, limit)

    @router.get("/prefixes")
    async def prefixes(request: Request, limit: int = Query(10, ge=1, le=100)) -> dict[str, Any]:
        keys.admin(request.headers.get("authorization"))  # they show what others ask
        tokenizer = engine.model.encoder.tokenizer
        found = await _call(engine, lambda s: hot_prefixes(s.pool, engine.index, tokenizer, limit))
        return {"prefixes": found}

    @router.post("/reset")
    async def reset(request: Request) -> dict[str, int]:
        admin(request)
        return {"dropped": await _call(engine, lambda s: s.pool.clear())}

    @router.post("/evict")
    async def evict(body: EvictRequest, request: Request) -> dict[str, int]:
        admin(request)

        def drop(scheduler: Scheduler) -> int:
            nodes = [engine.index.find(BlockHash(bytes.fromhex(name))) for name in body.hashes]
            return scheduler.pool.evict([node for node in nodes if node is not None])

        return {"dropped": await _call(engine, drop)}

    async def prompt_of(body: PinRequest | PrefetchRequest, request: Request) -> TokenIds:
        """The prompt to pin or fetch; 400 unless there is one that this server could be asked."""
        arrival = Arrival(len(await request.body()))
        if body.messages is not None:
            raw = await request.json()
            prompt, _ = await intake.chat_prompt(raw["messages"], raw.get("tools") or None, arrival)
            intake.room(prompt, "messages")
        else:
            (prompt,) = await intake.text_prompts([body.prompt or ""], arrival)
            intake.room(prompt, "prompt")
        return prompt

    @router.post("/prefetch")
    async def prefetch(body: PrefetchRequest, request: Request) -> dict[str, int]:
        admin(request)
        prompt = await prompt_of(body, request)
        root = engine.root("", None)
        return {"loaded": await _call(engine, lambda s: s.fetch(engine.index.chain(prompt, root)))}

    @router.post("/pin")
    async def pin(body: PinRequest, request: Request) -> dict[str, int]:
        """Computes what is missing, then holds it."""
        admin(request)
        prompt = await prompt_of(body, request)
        root = engine.root("", None)
        deltas = Deltas()
        warmed = Generation(
            prompt=prompt,
            root=root,
            max_tokens=1,
            choose=lambda logits, _: int(logits.argmax()),
            emit=lambda delta: deltas.emit(0, delta),
            ends=frozenset(),
            detokenizer=Detokenizer(engine.model.encoder.tokenizer),
            stop=StopFilter([]),
        )
        submit(engine.runtime, [warmed])
        async for _ in deltas.of([warmed]):
            pass

        def hold(scheduler: Scheduler) -> int:
            nodes = engine.index.chain(prompt, root)
            if body.public:
                engine.public.add(engine.index, nodes)
            return scheduler.pins.hold(nodes, body.ttl, scheduler.now())

        held = await _call(engine, hold)
        return {"blocks": held, "tokens": held * engine.index.block_size}

    return router


async def _call(engine: Engine, function: Any) -> Any:
    future: Future[Any] = engine.runtime.call(function)
    return await asyncio.wrap_future(future)


def _page(found: list[dict[str, Any]], offset: int, limit: int) -> dict[str, Any]:
    return {"total": len(found), "offset": offset, "blocks": found[offset : offset + limit]}


def _blocks(engine: Engine, scheduler: Scheduler, tier: Tier) -> list[dict[str, Any]]:
    pool = scheduler.pool.device if tier is Tier.DEVICE else scheduler.pool.lower.get(tier)
    if pool is None:
        return []
    state = pool.state
    nodes = np.flatnonzero(state.slot[: pool.nodes] >= 0)
    nodes = nodes[np.lexsort((nodes, state.depth[nodes]))]
    return [
        {
            "hash": engine.index.hash_of(node).hex(),
            "parent": None if state.parent[node] < 0 else engine.index.hash_of(int(state.parent[node])).hex(),
            "depth": int(state.depth[node]),
            "uses": int(state.touches[node]),
            "held": bool(state.pins[node] > 0),
        }
        for node in nodes.tolist()
    ]
