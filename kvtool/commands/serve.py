"""kvtool serve: an OpenAI-compatible server that reads its prefixes from shards."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtool.cache.policies import POLICIES
from kvtool.engine.serving.config import DEVICE_CODECS, ServeConfig
from kvtool.engine.storage.codecs import CODECS
from kvtool.options import Size, kept_secret

if TYPE_CHECKING:
    from kvtool.engine.serving.engine import Engine


@click.command(epilog="Example: kvtool serve --shards shards --port 8000")
@click.option(
    "--shards",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder that `kvtool prewarm` wrote; without it everything is cached as it comes.",
)
@click.option(
    "--signing-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=kept_secret,
    help="Key file: shards that are not signed with it are refused; every byte is read at start.",
)
@click.option("--model", help="embedded, or a Hugging Face model directory [the shards' own].")
@click.option("--host", default=ServeConfig.host, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=ServeConfig.port,
    show_default=True,
    help="0 takes a free one.",
)
@click.option("--device", default=ServeConfig.device, show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--dtype", default=ServeConfig.dtype, show_default=True, help="auto, float32, bfloat16 or float16."
)
@click.option(
    "--chat-template",
    default=ServeConfig.chat_template,
    show_default=True,
    help="auto, chatml-tools or a file.",
)
@click.option("--block-size", type=click.IntRange(1, 1024), help="Tokens per block [the shards', else 32].")
@click.option("--device-blocks", type=click.IntRange(2), help="Blocks that the model computes on.")
@click.option(
    "--device-memory",
    type=Size(),
    help="The same in bytes [2GiB at most on a CPU, 80% of what is free on a GPU].",
)
@click.option("--host-memory", type=Size(), help="Memory for blocks that left the device [half of it].")
@click.option(
    "--disk",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for blocks that left memory; they survive a restart.",
)
@click.option(
    "--disk-memory", type=Size(), default=ServeConfig.disk_memory, help="Most bytes in --disk [8GiB]."
)
@click.option(
    "--device-codec",
    type=click.Choice(DEVICE_CODECS),
    default=ServeConfig.device_codec,
    show_default=True,
    help="How the device keeps full blocks: rounded, two to three times as many fit. See the reference.",
)
@click.option(
    "--tier-codec",
    type=click.Choice(CODECS.names()),
    help="The same in host memory and --disk [as on the device].",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES.names()),
    default=ServeConfig.policy,
    show_default=True,
    help="Which blocks leave first; the simulator runs the same code.",
)
@click.option(
    "--normalizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="normalizer.json of `kvtool normalize`, applied to every chat request.",
)
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Lines `KEY` or `KEY TENANT`; the tenant `admin` may change the cache under /kv.",
)
@click.option(
    "--kv-events",
    metavar="ENDPOINT",
    help="Publish what is stored and removed over ZeroMQ, as vLLM does: tcp://127.0.0.1:5557.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(0),
    default=ServeConfig.max_queue,
    show_default=True,
    help="Requests that may wait; more are answered 429.",
)
@click.option(
    "--max-running",
    type=click.IntRange(1),
    default=ServeConfig.max_running,
    show_default=True,
    help="Requests computed together.",
)
@click.option(
    "--chunk-tokens",
    type=click.IntRange(1),
    default=ServeConfig.chunk_tokens,
    show_default=True,
    help="Prompt tokens of one forward; fewer make running answers smoother.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default=ServeConfig.log_format,
    show_default=True,
    help="Of the log on stderr: a line an event. It holds no prompts, answers, sessions or keys.",
)
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=ServeConfig.drain,
    show_default=True,
    help="Seconds that running requests get when the server is told to stop.",
)
def command(**options: Any) -> None:
    """Serve a model over OpenAI's API, with its prompts' prefixes from shards, memory and disk."""
    config = ServeConfig(**options)
    from kvtool.engine.extra import require_engine

    require_engine("serve")
    run(config)


def run(config: ServeConfig) -> None:
    """Serve until told to stop. Log on stderr, the address on stdout."""
    from kvtool.engine.serving.journal import keep
    from kvtool.engine.serving.launch import serve

    keep(config.log_format)
    serve(config, announce)


def announce(url: str, engine: "Engine") -> None:
    """Say where and what, in one line that scripts can read and one for people."""
    from kvtool.renderers.terminal import show_bytes

    tiers = engine.tiers
    sizes = [f"device {tiers.device:,}", f"host {tiers.host:,}", f"disk {tiers.disk:,}"]
    if engine.shards is not None:
        sizes.append(f"shards {len(engine.shards.rows):,}")
    click.echo(f"serving {engine.model_id} at {url}")
    click.echo(
        f"blocks of {engine.index.block_size} tokens ({show_bytes(tiers.block_bytes)}): {', '.join(sizes)}; "
        f"policy {engine.config.policy}"
    )
