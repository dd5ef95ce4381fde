"""kvtool shards: list, verify, compare, merge and clean directories of shards."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtool.options import Size, kept_secret
from kvtool.renderers import RENDERERS

if TYPE_CHECKING:
    from kvtool.report import Report

FOLDER = click.Path(file_okay=False, path_type=Path)
OUTPUT_FORMAT = click.option(
    "--output-format", type=click.Choice(["terminal", "json"]), default="terminal", show_default=True
)

SIGNING_KEY = click.option(
    "--signing-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=kept_secret,
    help="Key file: the shards must be signed with it, and what is written is.",
)


@click.group(epilog="Example: kvtool shards verify shards")
def command() -> None:
    """List, verify, compare, merge and clean directories of shards."""


@command.command("ls", epilog="Example: kvtool shards ls shards")
@click.argument("folder", type=FOLDER)
@OUTPUT_FORMAT
def list_shards(folder: Path, output_format: str) -> None:
    """What FOLDER holds: model, files, prefixes. Blocks are not read."""
    _ready()
    from kvtool.engine.storage.shards import open_shards
    from kvtool.engine.storage.shards_report import listing

    _print(listing(open_shards(folder)), output_format)


@command.command("verify", epilog="Example: kvtool shards verify shards")
@click.argument("folder", type=FOLDER)
@SIGNING_KEY
@OUTPUT_FORMAT
@click.pass_context
def verify_shards(ctx: click.Context, folder: Path, signing_key: Path | None, output_format: str) -> None:
    """Read every byte of FOLDER; exit 1 and the list of bad blocks if any."""
    _ready()
    from kvtool.engine.storage.manifest import read_manifest
    from kvtool.engine.storage.shards_report import verdict
    from kvtool.engine.storage.verify import verify
    from kvtool.progress import counted

    manifest = read_manifest(folder)
    with counted("bytes", sum(file.bytes for file in manifest.files)) as done:
        faults = verify(folder, done, _key(signing_key))
    _print(verdict(folder, manifest, faults), output_format)
    ctx.exit(1 if faults else 0)


@command.command("diff", epilog="Example: kvtool shards diff monday tuesday")
@click.argument("left", type=FOLDER)
@click.argument("right", type=FOLDER)
@OUTPUT_FORMAT
@click.pass_context
def diff_shards(ctx: click.Context, left: Path, right: Path, output_format: str) -> None:
    """Compare two directories by hash and checksum; exit 1 if they differ."""
    _ready()
    from kvtool.engine.storage.maintenance import diff
    from kvtool.engine.storage.shards import open_shards
    from kvtool.engine.storage.shards_report import comparison

    difference = diff(open_shards(left), open_shards(right))
    _print(comparison(left, right, difference), output_format)
    ctx.exit(1 if difference else 0)


@command.command("merge", epilog="Example: kvtool shards merge monday tuesday --out both")
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@click.option("--out", required=True, type=FOLDER, help="A new folder.")
@SIGNING_KEY
@OUTPUT_FORMAT
def merge_shards(folders: tuple[Path, ...], out: Path, signing_key: Path | None, output_format: str) -> None:
    """Write every block of FOLDERS into one new folder; the first that has a block gives it."""
    _ready()
    from kvtool.engine.storage.maintenance import merge
    from kvtool.engine.storage.shards import open_shards
    from kvtool.engine.storage.shards_report import listing

    merge([open_shards(folder) for folder in folders], out, key=_key(signing_key))
    _print(listing(open_shards(out)), output_format)


@command.command("gc", epilog="Example: kvtool shards gc shards --keep 1GiB")
@click.argument("folder", type=FOLDER)
@click.option("--keep", type=Size(), help="Drop the least used blocks until the rest takes no more bytes.")
@SIGNING_KEY
@OUTPUT_FORMAT
def clean_shards(folder: Path, keep: int | None, signing_key: Path | None, output_format: str) -> None:
    """Delete leftovers of crashes, bad blocks and what builds on them; --keep also drops the least used."""
    _ready()
    from kvtool.engine.storage.maintenance import collect_garbage
    from kvtool.engine.storage.shards import open_shards
    from kvtool.engine.storage.shards_report import cleaning

    files, blocks = collect_garbage(folder, keep, key=_key(signing_key))
    _print(cleaning(open_shards(folder), files, blocks), output_format)


def _key(path: Path | None) -> bytes | None:
    from kvtool.engine.storage.signature import load_key

    return None if path is None else load_key(path)


def _ready() -> None:
    from kvtool.engine.extra import require_engine

    require_engine("shards")


def _print(report: "Report", output_format: str) -> None:
    RENDERERS.load(output_format)(report)
