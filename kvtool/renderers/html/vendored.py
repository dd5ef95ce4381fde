"""Chart libraries that travel inside the package, since a report is made and read without a network.

To renew one: `npm pack NAME@VERSION`, copy the minified file and its LICENSE, state its digest here.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kvtool.errors import KvtoolError

FOLDER = Path(__file__).parent / "vendor"


@dataclass(frozen=True, slots=True)
class Library:
    """A file of a package of the npm registry. digest: SHA-256 of the file, hexadecimal."""

    package: str
    version: str
    licence: str
    file: str
    licence_file: str
    digest: str

    def source(self) -> str:
        """The file's text. KvtoolError where it is not what was vendored."""
        data = (FOLDER / self.file).read_bytes()
        if sha256(data).hexdigest() != self.digest:
            raise KvtoolError(f"{FOLDER / self.file}: damaged", "install kvtool again")
        return data.decode()


LIBRARIES = (
    Library(
        "d3", "7.9.0", "ISC", "d3.min.js", "LICENSE-d3",
        "f2094bbf6141b359722c4fe454eb6c4b0f0e42cc10cc7af921fc158fceb86539",
    ),
    Library(
        "@observablehq/plot", "0.6.17", "ISC", "plot.umd.min.js", "LICENSE-plot",
        "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
    ),
)  # fmt: skip
"""In the order in which a page loads them: Plot builds on d3."""
