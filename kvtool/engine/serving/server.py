"""The HTTP application: OpenAI's endpoints, health, metrics, and the cache's own under /kv."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from kvtool import __version__
from kvtool.engine.serving.admin import admin_routes, snapshot
from kvtool.engine.serving.answers import ChatAnswer, TextAnswer
from kvtool.engine.serving.api import ApiError, ChatRequest, CompletionRequest, Hints
from kvtool.engine.serving.document import describe
from kvtool.engine.serving.engine import Engine
from kvtool.engine.serving.intake import Arrival, Intake
from kvtool.engine.serving.keys import Keys
from kvtool.engine.serving.limits import BodyLimit, KeyFirst
from kvtool.engine.serving.metrics import Metrics
from kvtool.engine.serving.respond import Deltas, respond

PAGE = Path(__file__).with_name("page.html")
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-cache",
}
"""The page loads nothing from elsewhere and talks to this server only."""

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""Beside JSON: what `stream` gives."""

MOST_PROMPTS = 64
"""Prompts in one /v1/completions request."""


def create_app(engine: Engine, metrics: Metrics, keys: Keys) -> FastAPI:
    """The application; its end finishes or cancels requests and closes the engine."""
    intake = Intake(engine)
    engine.runtime.shared = keys.several
    metrics.watch(lambda: snapshot(engine))
    started = int(time.time())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        engine.close(engine.runtime.left)

    app = FastAPI(
        title="kvtool serve",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # where to would be what the client calls this host
    )
    app.add_middleware(BodyLimit, limit=engine.config.body_limit)
    app.add_middleware(KeyFirst, keys=keys)
    _answer_errors(app)

    def caller(request: Request) -> str:
        return keys.caller(request.headers.get("authorization")).tenant

    def session(request: Request, body: ChatRequest | CompletionRequest) -> str | None:
        return request.headers.get("x-session-id") or body.prompt_cache_key or body.user

    async def arrived(request: Request, tenant: str, whose: str | None) -> Arrival:
        return Arrival(len(await request.body()), None if whose is None else (tenant, whose))

    def hints(request: Request, body: ChatRequest | CompletionRequest) -> None:
        """Take hints from headers where the body has none."""
        for name in Hints.model_fields:
            header = f"x-{name.replace('_', '-')}"
            if header in request.headers and name not in body.model_fields_set:
                try:
                    found = Hints.model_validate({name: request.headers[header]}, strict=False)
                except ValidationError as error:
                    raise ApiError(400, f"{header}: {error.errors()[0]['msg']}", param=header) from error
                setattr(body, name, getattr(found, name))

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=PAGE_HEADERS)

    # HEAD is what load balancers send: uvicorn cuts GET's answer off.
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> JSONResponse:
        healthy = engine.runtime.healthy
        return JSONResponse({"status": "ok" if healthy else "unavailable"}, 200 if healthy else 503)

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics_text() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.head("/v1/models", include_in_schema=False)
    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        caller(request)
        return {"object": "list", "data": [_model(engine, started)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> dict[str, Any]:
        caller(request)
        intake.check_model(name)
        return _model(engine, started)

    @app.post("/v1/chat/completions", responses=STREAMED)
    async def chat(body: ChatRequest, request: Request) -> Response:
        tenant = caller(request)
        intake.check_model(body.model)
        hints(request, body)
        raw = await request.json()  # tools and messages go to the template with their keys as they came
        chat, given = raw["messages"], raw.get("tools") or None
        whose = session(request, body)
        arrival = await arrived(request, tenant, whose)
        prompt, public = await intake.chat_prompt(chat, given, arrival, tenant, body.cache_salt)
        deltas = Deltas()
        generations = intake.chat(body, prompt, tenant, whose, deltas.emit, public)
        tools = bool(body.tools) and body.tool_choice != "none"
        spelled = engine.model.encoder.tokenizer.spelled
        answer = ChatAnswer(_id("chatcmpl"), int(time.time()), body.model, body.n, tools, spelled)
        return await respond(request, engine.runtime, body, generations, deltas, answer)

    @app.post("/v1/completions", responses=STREAMED)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        tenant = caller(request)
        intake.check_model(body.model)
        hints(request, body)
        given: list[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
        if given and isinstance(given[0], int):
            given = [given]
        if not 1 <= len(given) <= MOST_PROMPTS:
            raise ApiError(400, f"prompt: between 1 and {MOST_PROMPTS} prompts", param="prompt")
        whose = session(request, body)
        prompts = await intake.text_prompts(given, await arrived(request, tenant, whose))
        deltas = Deltas()
        generations = intake.completion(body, prompts, tenant, whose, deltas.emit)
        spelled = engine.model.encoder.tokenizer.spelled
        answer = TextAnswer(_id("cmpl"), int(time.time()), body.model, len(generations), spelled)
        return await respond(request, engine.runtime, body, generations, deltas, answer)

    app.include_router(admin_routes(engine, intake, keys))
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    return app


def _model(engine: Engine, created: int) -> dict[str, Any]:
    return {
        "id": engine.model_id,
        "object": "model",
        "created": created,
        "owned_by": "kvtool",
        "max_model_len": engine.longest,
    }


def _id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def _answer_errors(app: FastAPI) -> None:
    """All errors in OpenAI's shape."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body, error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def bad_body(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = [str(part) for part in first["loc"] if part != "body"]
        message = f"{'.'.join(place)}: {first['msg']}" if place else str(first["msg"])
        return JSONResponse(ApiError(400, message, param=place[0] if place else None).body, 400)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        shaped = ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
        return JSONResponse(shaped.body, shaped.status, shaped.headers)

    @app.exception_handler(Exception)
    async def broken(_: Request, __: Exception) -> JSONResponse:
        """A mistake of ours, which is logged with its traceback."""
        return JSONResponse(ApiError(500, "The server has failed.", kind="server_error").body, 500)
