"""Replay: send a log's requests to an OpenAI-compatible server at their recorded times, and measure."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from kvtool.errors import KvtoolError
from kvtool.requests import Request


@dataclass(frozen=True, slots=True)
class Sent:
    """One request's fate. ttft, total: seconds from sending to the first text, and to the end. at: when it
    was sent, in seconds of the replay.

    `error` says why there is no answer; the counts are then 0. cached is None where the server is silent.
    text: all that the answer says, tool calls as JSON.
    """

    id: str
    place: str
    prompt: int = 0
    cached: int | None = None
    completion: int = 0
    ttft: float | None = None
    total: float = 0.0
    text: str = ""
    error: str | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send. speed: 2.0 halves the recorded pauses; None sends as fast as `in_flight` allows.

    salt: requests with it share cached blocks with none but those of the same salt.
    """

    url: str
    model: str
    api_key: str | None = None
    speed: float | None = 1.0
    in_flight: int = 64
    max_tokens: int = 16
    temperature: float = 0.0
    timeout: float = 600.0
    salt: str | None = None


class Server:
    """An OpenAI-compatible server and, if it is our own, its /kv."""

    def __init__(self, url: str, api_key: str | None) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=base, headers=headers, timeout=30.0)

    def models(self) -> list[str]:
        """Names that it serves; KvtoolError when it cannot be reached."""
        try:
            answer = self._client.get("/v1/models")
            answer.raise_for_status()
            return [str(entry["id"]) for entry in answer.json()["data"]]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise KvtoolError(
                f"--url {self._client.base_url}: no OpenAI-compatible server answers: {error}",
                "start one: kvtool serve --shards DIR",
            ) from error

    def stats(self) -> dict[str, Any] | None:
        """/kv/stats of our own server, None for another one."""
        try:
            answer = self._client.get("/kv/stats")
            found = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None
        return found if isinstance(found, dict) and "tiers" in found else None

    def blocks(self, tier: str) -> list[str] | None:
        """Hashes (hex) of the blocks in a tier; None without the admin key."""
        hashes: list[str] = []
        while True:
            query: dict[str, str | int] = {"tier": tier, "offset": len(hashes), "limit": 10_000}
            answer = self._client.get("/kv/blocks", params=query)
            if answer.status_code != 200:
                return None
            page = answer.json()
            hashes += [block["hash"] for block in page["blocks"]]
            if not page["blocks"] or len(hashes) >= page["total"]:
                return hashes

    def policy(self) -> dict[str, Any] | None:
        """What it ranks blocks by, parameters and all; None without the admin key."""
        answer = self._client.get("/kv/policy")
        found = answer.json() if answer.status_code == 200 else None
        return found if isinstance(found, dict) else None

    def reset(self) -> None:
        """Empty its memory and disk tiers."""
        answer = self._client.post("/kv/reset", json={})
        if answer.status_code != 200:
            raise KvtoolError(f"--reset: the server answered {answer.status_code}: {answer.text[:200]}")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def sendable(request: Request) -> str | None:
    """Why a request cannot be sent, None if it can."""
    if request.messages is None and request.text is None and request.token_ids is None:
        return "block ids only: the prompt's text is not in the log"
    if request.messages is not None and not request.messages:
        return "no messages"
    return None


def replay(requests: Sequence[Request], target: Target, done: Callable[[int], None]) -> list[Sent]:
    """Send `requests`, which are in arrival order; results in the same order. `done` gets their number."""
    return asyncio.run(_replay(requests, target, done))


async def _replay(requests: Sequence[Request], target: Target, done: Callable[[int], None]) -> list[Sent]:
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=target.in_flight)
    gate = asyncio.Semaphore(target.in_flight)
    base = target.url.rstrip("/").removesuffix("/v1")
    finished = 0
    started = time.perf_counter()
    async with httpx.AsyncClient(
        base_url=base, headers=headers, timeout=httpx.Timeout(target.timeout, connect=10.0), limits=limits
    ) as client:

        async def one(request: Request) -> Sent:
            nonlocal finished
            try:
                at = time.perf_counter() - started
                return replace(await _send(client, request, target), at=at)
            finally:
                gate.release()
                finished += 1
                done(finished)

        tasks = []
        for request, delay in zip(requests, delays(requests, target.speed), strict=True):
            await asyncio.sleep(max(started + delay - time.perf_counter(), 0))
            await gate.acquire()
            tasks.append(asyncio.create_task(one(request)))
        return list(await asyncio.gather(*tasks))


def delays(requests: Sequence[Request], speed: float | None) -> list[float]:
    """Seconds after the start at which each request is due; those without a time are due at once."""
    if speed is None:
        return [0.0] * len(requests)
    times = [request.arrival for request in requests if request.arrival is not None]
    first = min(times, default=0)
    found: list[float] = []
    latest = 0.0
    for request in requests:
        if request.arrival is not None:
            latest = max(latest, (request.arrival - first) / 1e6 / speed)
        found.append(latest)
    return found


def session_of(request: Request) -> str | None:
    """The session that the server is told; a header holds ASCII only."""
    return request.session if request.session and request.session.isascii() else None


def body_of(request: Request, target: Target) -> tuple[str, dict[str, Any]]:
    """(path, body) of a request. Only what makes the prompt is taken from the log."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": target.max_tokens,
        "temperature": target.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.salt is not None:
        body["cache_salt"] = target.salt
    if request.messages is not None:
        body["messages"] = request.messages
        if request.tools:
            body["tools"] = request.tools
        return "/v1/chat/completions", body
    body["prompt"] = request.text if request.text is not None else [int(t) for t in request.token_ids or ()]
    return "/v1/completions", body


async def _send(client: httpx.AsyncClient, request: Request, target: Target) -> Sent:
    place = f"{request.source.file}:{request.source.row}"
    path, body = body_of(request, target)
    session = session_of(request)
    headers = {} if session is None else {"X-Session-Id": session}
    usage: dict[str, Any] = {}
    first: float | None = None
    pieces: list[str] = []
    started = time.perf_counter()
    try:
        async with client.stream("POST", path, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                text = (await answer.aread()).decode("utf-8", "replace")
                return Sent(request.id, place, error=f"{answer.status_code}: {_message(text)}")
            async for line in answer.aiter_lines():
                if not line.startswith("data:") or line.endswith("[DONE]"):
                    continue
                chunk = json.loads(line[5:])
                if "error" in chunk:
                    return Sent(request.id, place, error=str(chunk["error"].get("message")))
                usage = chunk.get("usage") or usage
                said = "".join(_said(choice) for choice in chunk.get("choices", []))
                if said and first is None:
                    first = time.perf_counter() - started
                pieces.append(said)
    except (httpx.HTTPError, ValueError) as error:
        return Sent(request.id, place, error=f"{type(error).__name__}: {error}".rstrip(": "))
    details = usage.get("prompt_tokens_details") or {}
    total = time.perf_counter() - started
    return Sent(
        request.id,
        place,
        prompt=usage.get("prompt_tokens", 0),
        cached=details.get("cached_tokens"),
        completion=usage.get("completion_tokens", 0),
        ttft=total if first is None else first,
        total=total,
        text="".join(pieces),
    )


def _said(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    calls = "".join(json.dumps(call, sort_keys=True) for call in delta.get("tool_calls") or [])
    return (choice.get("text") or "") + (delta.get("content") or "") + calls


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]
