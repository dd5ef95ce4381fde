"""What the API takes: OpenAI's request bodies, checked, and its error shape."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class ApiError(Exception):
    """Answered as OpenAI's error object. `code` and `param` as clients match on them."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1000)]],
    BeforeValidator(lambda value: [] if value is None else _as_list(value)),
    Field(max_length=16),
]
Bias = dict[str, Annotated[float, Field(ge=-100, le=100)]]


class _Body(BaseModel):
    """An option that we do not know is an error, not ignored: it might change the answer. So is a value of
    another type: true is no token, and "5" no number.

    JSON can hold lone surrogates, which are no text and cannot be sent, hashed or tokenized; and Python's
    reader takes NaN and Infinity for it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if isinstance(value, bytes):
            raise ValueError("the body's Content-Type is not application/json")
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it holds a lone surrogate, which is no text") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError:
            raise ValueError("it holds NaN or Infinity, which are not JSON") from None
        return value


class StreamOptions(_Body):
    """include_usage: a last chunk with the token counts."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Hints(_Body):
    """What a client that cannot add fields to a body may say in X-Priority and X-Session-TTL.

    session_ttl: seconds for which the session will want its blocks again; 0: this was its last request.
    """

    priority: int = Field(0, ge=-1000, le=1000)
    session_ttl: float | None = Field(None, ge=0, le=3600)


NULLABLE = ("n", "stream", "frequency_penalty", "presence_penalty", "logprobs", "echo")
"""OpenAI lets them be null, which is their default."""


class _Common(Hints):
    """Fields of both kinds of completion. The last group is accepted and has no effect here."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_may_be_null(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if one is not None or name not in NULLABLE}

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=16)
    stop: Stops = []
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    frequency_penalty: float = Field(0, ge=-2, le=2)
    presence_penalty: float = Field(0, ge=-2, le=2)
    logit_bias: Bias | None = None
    ignore_eos: bool = False
    cache_salt: str | None = Field(None, max_length=256)
    prompt_cache_key: str | None = Field(None, max_length=256)

    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None


class ResponseFormat(_Body):
    """json_schema: {"name": ..., "schema": {...}}; both kinds of JSON need the extra `json`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class Message(BaseModel):
    """A chat message; other fields travel to the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any] | str] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class FunctionTool(BaseModel):
    """The function of a tool."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1)


class Tool(BaseModel):
    """A tool that the model may call."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: FunctionTool


class FunctionName(_Body):
    """Of a tool that must be called."""

    name: str = Field(min_length=1)


class ToolChoice(_Body):
    """One function that must be called."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(_Common):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None


class CompletionRequest(_Common):
    """POST /v1/completions. `prompt` is text, token ids, or a list with one of either."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None


class _PromptOrChat(_Body):
    prompt: str | list[int] | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[Tool] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("either a prompt or messages")
        return self


class PinRequest(_PromptOrChat):
    """POST /kv/pin: keep the full blocks of a prompt resident for `ttl` seconds.

    public: until the server ends tenants share these blocks where they are their system prompt and tools.
    """

    ttl: float = Field(3600, gt=0, le=30 * 86400)
    public: bool = False


class PrefetchRequest(_PromptOrChat):
    """POST /kv/prefetch: bring a prompt's blocks up into the host tier."""


class EvictRequest(_Body):
    """POST /kv/evict: drop blocks, named by their hashes, and all below them."""

    hashes: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] = Field(min_length=1, max_length=10_000)
