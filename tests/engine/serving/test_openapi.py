"""Whatever the OpenAPI document allows, and what it forbids, is answered as it says: schemathesis tries."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def running(serving: Callable[..., AbstractContextManager[Any]], tiny_model: Path) -> Iterator[Any]:
    with serving(model=str(tiny_model), block_size=16, device_blocks=64) as made:
        yield made


@pytest.fixture(scope="module")
def document(running: Any) -> Any:
    return schemathesis.openapi.from_url(f"{running.url}/openapi.json")


MANNERS = settings(
    max_examples=7,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_operation_keeps_what_the_document_says(document: Any, running: Any, mode: Any) -> None:
    tried = set()
    for found in document.get_all_operations():
        operation = found.ok()

        @MANNERS
        @given(case=operation.as_strategy(generation_mode=mode))
        def keep(case: Any) -> None:
            if isinstance(case.body, dict) and "model" in case.body:  # or all end at an unknown model
                case.body["model"] = "tiny-llama"
                case.body["max_tokens"] = 2
            case.call_and_validate(checks=CHECKS, timeout=60)
            tried.add((case.method, case.path))

        with suppress(Unsatisfiable):  # nothing can be wrong with a request that has no fields
            keep()
    assert len(tried) >= 7
    running.on_scheduler(lambda s: (s.pins.clear(), s.kept.clear()))
    running.idle()


def test_the_document_names_openais_errors_and_no_others(running: Any) -> None:
    app = schemathesis.openapi.from_url(f"{running.url}/openapi.json").raw_schema
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/kv/pin", "/health"} <= set(
        app["paths"]
    )
    for operations in app["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"] and "4XX" in operation["responses"]
