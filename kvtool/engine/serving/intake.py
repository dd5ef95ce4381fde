"""From a checked body to generations: prompt tokens, limits, sampling."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from kvtool.blocks import TokenIds
from kvtool.engine.compute.edits import Edits
from kvtool.engine.compute.sampler import Sampling
from kvtool.engine.serving.api import ApiError, ChatRequest, CompletionRequest
from kvtool.engine.serving.choosing import Rules
from kvtool.engine.serving.constraint import Grammars
from kvtool.engine.serving.engine import Engine
from kvtool.engine.serving.generation import Delta, Generation
from kvtool.engine.serving.text import Detokenizer, StopFilter
from kvtool.errors import KvtoolError
from kvtool.requests import Request, Source

Emit = Callable[[int, Delta], None]
"""Gets (number of the choice, what it adds), in the scheduler's thread."""

HEAD_ROLES = ("system", "developer")

COLD = 1e-5
"""Temperatures below it are greedy, as in vLLM: logits over them could overflow."""

DIGITS = 10
"""No token id has so many."""

NOWHERE = Source("request", 1)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What decides when a request is tokenized (see `lanes`): bytes of its body, and whose it is."""

    size: int
    client: tuple[str, str] | None = None


class Intake:
    """Makes generations for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._grammars = Grammars(engine.model)
        self._lanes = engine.lanes

    def check_model(self, name: str) -> None:
        """404 for a model that is not served here."""
        if name not in (self._engine.model_id, self._engine.model.name):
            raise ApiError(
                404,
                f"The model `{name}` does not exist. This server has `{self._engine.model_id}`.",
                code="model_not_found",
                param="model",
            )

    async def text_prompts(self, given: Sequence[str | list[int]], arrival: Arrival) -> list[TokenIds]:
        """Token ids of texts or of ids, uint32 [n] each; 400 when they cannot be a prompt."""
        for prompt in given:
            if isinstance(prompt, list):
                self._check_ids(prompt)
        return await self._lanes.run(
            arrival.size,
            arrival.client,
            lambda: [
                self._encode_text(prompt, "prompt")
                if isinstance(prompt, str)
                else np.array(prompt, np.uint32)
                for prompt in given
            ],
        )

    async def chat_prompt(
        self,
        messages: list[Any],
        tools: list[Any] | None,
        arrival: Arrival,
        tenant: str = "",
        salt: str | None = None,
    ) -> tuple[TokenIds, int]:
        """Token ids of a chat, uint32 [n], and how many leading ones its system prompt and tools make
        and that the tenant may share; 400 when it cannot be a prompt."""
        _check_parts(messages)
        asks = bool(tenant) and salt is None and bool(len(self._engine.public))

        def encode() -> tuple[TokenIds, int]:
            prompt = self._encode_chat(messages, tools)
            return prompt, self._public_tokens(prompt, messages, tools) if asks else 0

        return await self._lanes.run(arrival.size, arrival.client, encode)

    def _public_tokens(self, prompt: TokenIds, messages: list[Any], tools: list[Any] | None) -> int:
        """Found by comparing with the same head before an empty question, so it holds for any template."""
        head = list(takewhile(lambda message: message.get("role") in HEAD_ROLES, messages))
        try:
            bare = self._encode_chat([*head, {"role": "user", "content": ""}], tools)
        except ApiError:  # a template that wants more than that
            return 0
        both = min(len(bare), len(prompt))
        differ = np.flatnonzero(bare[:both] != prompt[:both])
        return int(differ[0]) if len(differ) else both

    def _encode_chat(self, messages: list[Any], tools: list[Any] | None) -> TokenIds:
        if self._engine.normalizer is not None:
            messages, tools = self._engine.normalizer.apply(messages, tools)
        request = Request("", NOWHERE, messages=messages, tools=tools)
        try:
            text = self._engine.model.encoder.render(request).text
        except KvtoolError as error:
            raise ApiError(400, str(error), param="messages") from error
        return self._encode_text(text, "messages")

    def _encode_text(self, text: str, param: str) -> TokenIds:
        tokenizer, longest = self._engine.model.encoder.tokenizer, self._engine.longest
        if len(text) > longest and (least := tokenizer.fewest(text)) >= longest:
            raise _too_long(longest, f"at least {least}", param)
        return tokenizer.encode(text)

    def _check_ids(self, prompt: list[int]) -> None:
        vocab, longest = self._engine.model.config.vocab, self._engine.longest
        if len(prompt) >= longest:
            raise _too_long(longest, str(len(prompt)), "prompt")
        if any(not 0 <= token < vocab for token in prompt):
            raise ApiError(400, f"prompt: token ids must be between 0 and {vocab - 1}", param="prompt")

    def chat(
        self,
        body: ChatRequest,
        prompt: TokenIds,
        tenant: str,
        session: str | None,
        emit: Emit,
        public: int = 0,
    ) -> list[Generation]:
        """One generation for each of n choices. public: see `chat_prompt`."""
        top = None
        if body.logprobs:
            top = body.top_logprobs or 0
        elif body.top_logprobs is not None:
            raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
        grammar = None
        if body.response_format is not None and body.response_format.type != "text":
            grammar = self._grammars.compile(body.response_format)
        if body.tool_choice not in (None, "none", "auto"):
            if grammar is not None:
                raise ApiError(
                    400, "a forced call and a response_format exclude each other", param="tool_choice"
                )
            grammar = self._grammars.call(body.tools or [], body.tool_choice)
        wanted = body.max_completion_tokens or body.max_tokens
        return self._generations(body, [prompt], wanted, top, tenant, session, emit, public, grammar)

    def completion(
        self,
        body: CompletionRequest,
        prompts: Sequence[TokenIds],
        tenant: str,
        session: str | None,
        emit: Emit,
    ) -> list[Generation]:
        """One generation for each of n choices of each prompt."""
        if body.echo or body.suffix or body.best_of not in (None, 1, body.n):
            raise ApiError(400, "echo, suffix and best_of are not supported")
        return self._generations(body, prompts, body.max_tokens, body.logprobs, tenant, session, emit)

    def _generations(
        self,
        body: ChatRequest | CompletionRequest,
        prompts: Sequence[TokenIds],
        wanted: int | None,
        top_logprobs: int | None,
        tenant: str,
        session: str | None,
        emit: Emit,
        public: int = 0,
        grammar: str | None = None,
    ) -> list[Generation]:
        engine, model = self._engine, self._engine.model
        root = engine.root(tenant, body.cache_salt)
        edits = Edits(self._bias(body.logit_bias), body.frequency_penalty, body.presence_penalty)
        seed = secrets.randbits(63) if body.seed is None else body.seed
        temperature = 1.0 if body.temperature is None else body.temperature
        if temperature < COLD:
            temperature = 0.0
        made: list[Generation] = []
        for prompt in prompts:
            room = self.room(prompt, "messages" if isinstance(body, ChatRequest) else "prompt")
            for _ in range(body.n):
                number = len(made)
                sampling = Sampling(
                    temperature=temperature,
                    top_k=min(max(body.top_k or 0, 0), model.config.vocab),
                    top_p=1.0 if body.top_p is None else body.top_p,
                    min_p=body.min_p or 0.0,
                    seed=(seed + number) % (1 << 64),
                )
                choose = Rules(sampling, edits)
                generation = Generation(
                    prompt=prompt,
                    root=root,
                    max_tokens=min(wanted or room, room),
                    choose=choose if grammar is None else self._grammars.constrain(choose, grammar),
                    emit=lambda delta, number=number: emit(number, delta),  # type: ignore[misc]
                    ends=frozenset() if body.ignore_eos and grammar is None else model.stop_tokens,
                    detokenizer=Detokenizer(model.encoder.tokenizer),
                    stop=StopFilter(body.stop),
                    tenant=tenant,
                    session=session,
                    public=public,
                    keep=body.session_ttl,
                    priority=body.priority,
                    top_logprobs=top_logprobs,
                )
                made.append(generation)
        return made

    def room(self, prompt: TokenIds, param: str) -> int:
        """Most tokens that can follow `prompt`; 400 if there is no room for one."""
        longest = self._engine.longest
        if not len(prompt):
            raise ApiError(400, "the prompt is empty", param=param)
        if len(prompt) >= longest:
            raise _too_long(longest, str(len(prompt)), param)
        return longest - len(prompt)

    def _bias(self, given: dict[str, float] | None) -> dict[int, float]:
        bias: dict[int, float] = {}
        for key, value in (given or {}).items():
            token = int(key) if key.isdecimal() and len(key) < DIGITS else -1
            if str(token) != key or not 0 <= token < self._engine.model.config.vocab:
                raise ApiError(400, f"logit_bias: '{key[:20]}' is not a token id", param="logit_bias")
            bias[token] = value
        return bias


def _too_long(longest: int, count: str, param: str) -> ApiError:
    return ApiError(
        400,
        f"This server's maximum context length is {longest} tokens; the prompt has {count}.",
        code="context_length_exceeded",
        param=param,
    )


def _check_parts(messages: Sequence[Any]) -> None:
    """400 for a part that is not text: in logs a placeholder stands for it, which is nothing to answer."""
    for number, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else []):
            if not isinstance(part if isinstance(part, str) else part.get("text"), str):
                raise ApiError(
                    400,
                    f"messages.{number}.content.{place}: not a text part, and this server reads text only",
                    param="messages",
                )
