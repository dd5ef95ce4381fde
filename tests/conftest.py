"""What several rooms need: a tiny model directory, a branching log, a server on loopback."""

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.browser import browser, visit

__all__ = ["browser", "visit"]  # fixtures of tests that open a page

if TYPE_CHECKING:
    from kvtool.engine.serving.engine import Engine
    from kvtool.engine.serving.scheduler import Scheduler

# A first call compiles, and machines are shared: how long an example takes says nothing.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

# Without a GPU, kernels run under Triton's interpreter. Triton reads this once, when anything imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def own_cache() -> Iterator[None]:
    """No test touches the user's cache: converted models, profiles and guides are made in the run."""
    with tempfile.TemporaryDirectory(prefix="kvtool-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVTOOL_CACHE", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def slow_prefill() -> Iterator[None]:
    """A token takes a millisecond, as far as prewarm measures: a tiny model is faster than a busy disk, and
    what computes faster than it loads is not stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvtool.engine.speeds._prefill", lambda model, arena, tokens: tokens / 1000)
        yield


@pytest.fixture(scope="session")
def valid_json() -> Callable[[dict[str, Any]], None]:
    """Holds a command's JSON document to its published schema."""
    from jsonschema import Draft202012Validator

    folder = Path(__file__).parent.parent / "docs/reference/schemas"

    def check(document: dict[str, Any]) -> None:
        name = document["schema"].replace("/", ".") + ".json"
        Draft202012Validator(json.loads((folder / name).read_text())).validate(document)

    return check


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for `--model`: 2 layers, 2 KV heads, head_dim 8, 1,024 positions; one token a byte."""
    import torch
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=1024,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=257,
    )
    torch.manual_seed(11)
    transformers.utils.logging.disable_progress_bar()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": marks[1], "bos_token": marks[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def branching_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat log of 10 requests: one long system prompt, three topics with turns of their own."""
    system = "You answer questions about trains, planes and ships. " * 8
    topics = ["trains run on rails and ", "planes fly over the sea and ", "ships carry grain and "]
    path = tmp_path_factory.mktemp("log") / "chat.jsonl"
    rows = []
    for number in range(10):
        topic = topics[number % 3]
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": topic * 5},
            {"role": "assistant", "content": f"As for {topic * 2}I know."},
            {"role": "user", "content": f"Question {number}?"},
        ]
        rows.append(
            {
                "model": "tiny",
                "messages": messages,
                "timestamp": 1700000000 + number,
                "session_id": f"s{number}",
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@dataclass(frozen=True)
class Running:
    """A server on loopback, in a thread of this process, so that a test can look inside."""

    url: str
    engine: "Engine"

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.engine.scheduler.counts)

    def on_scheduler(self, function: "Callable[[Scheduler], Any]") -> Any:
        return self.engine.runtime.call(function).result(30)

    def idle(self) -> None:
        """Wait until no request is inside, then check every invariant."""
        for _ in range(3000):
            if not self.engine.runtime.inside and self.on_scheduler(
                lambda s: not s.running and not s.waiting
            ):
                break
            threading.Event().wait(0.01)
        else:
            raise AssertionError("requests never ended")
        self.on_scheduler(lambda s: s.pool.check())


@contextmanager
def run_server(**options: Any) -> Iterator[Running]:
    from kvtool.engine.serving.config import ServeConfig
    from kvtool.engine.serving.engine import build_engine
    from kvtool.engine.serving.keys import Keys
    from kvtool.engine.serving.launch import Server, bind
    from kvtool.engine.serving.metrics import Metrics
    from kvtool.engine.serving.server import create_app

    config = ServeConfig(port=0, drain=5.0, **options)
    metrics = Metrics()
    keys = Keys.load(config.api_key_file, config.host)
    engine = build_engine(config, metrics)
    listening = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = Server(create_app(engine, metrics, keys), config, ready.set, engine)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        assert ready.wait(60)
        yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}", engine)
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
    assert not thread.is_alive() and engine.scheduler.pool.device.available() == engine.tiers.device


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[Running]]:
    """A context manager: options of ServeConfig -> a running server, stopped and checked at its end."""
    return run_server
