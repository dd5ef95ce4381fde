"""reuse.json beside shards: the reuse model of the log that they were made from, for `serve --policy fitted`.

The manifest does not list it. It vouches for what must be right to the bit; the model only orders
evictions, so a wrong one costs hits and never an answer, and a newer one can be put in its place without
touching a block.
"""

from pathlib import Path

from kvtool.analysis.reuse_model import ReuseModel
from kvtool.engine.storage.files import DAMAGED, drop_damaged, read_companion, write_companion
from kvtool.errors import KvtoolError

REUSE = "reuse.json"


def write_reuse(folder: Path, model: ReuseModel | None) -> None:
    """Write the model over an older one. With None, of a log that tells none, a sound one stays."""
    if model is None:
        drop_damaged(folder / REUSE, lambda: read_reuse(folder))
    else:
        write_companion(folder / REUSE, model.to_json())


def read_reuse(folder: Path) -> ReuseModel | None:
    """The model of `folder`, None if it has none. KvtoolError if the file is no such model."""
    path = folder / REUSE
    text = read_companion(path)
    try:
        return None if text is None else ReuseModel.from_json(text, str(path))
    except KvtoolError as error:
        raise KvtoolError(error.message, DAMAGED) from error
