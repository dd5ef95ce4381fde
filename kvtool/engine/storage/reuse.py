"""reuse.json beside shards: the reuse model of the log that they were made from, for `serve --policy fitted`.

The manifest does not list it. It vouches for what must be right to the bit; the model only orders
evictions, so a wrong one costs hits and never an answer, and a newer one can be put in its place without
touching a block.
"""

from pathlib import Path

from kvtool.analysis.reuse_model import ReuseModel
from kvtool.engine.storage.files import write_private
from kvtool.errors import KvtoolError

REUSE = "reuse.json"


def write_reuse(folder: Path, model: ReuseModel) -> None:
    """Write the model as a whole, over an older one; the same bytes are not written again."""
    data = model.to_json().encode()
    path = folder / REUSE
    if not path.is_file() or path.read_bytes() != data:
        write_private(path, data)


def read_reuse(folder: Path) -> ReuseModel | None:
    """The model of `folder`, None if it has none. KvtoolError if the file is no such model."""
    path = folder / REUSE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise KvtoolError(f"{path}: {error}", "run prewarm again, or delete the file") from error
    return ReuseModel.from_json(text, str(path))
