"""One small registry: the files of a package are the values of an option.

`kvtool/cache/policies/lfu_da.py` is `--policy lfu-da`; it exposes one object under the registry's
attribute name. Listing names reads the folder and imports nothing, so `--help` stays fast.
"""

import importlib
import pkgutil
from typing import Generic, TypeVar, cast

from kvtool.errors import KvtoolError

T = TypeVar("T")


class Registry(Generic[T]):
    """Entries of `package`, one module each, every module exposing `attribute`."""

    def __init__(self, package: str, attribute: str, noun: str) -> None:
        self.package = package
        self.attribute = attribute
        self.noun = noun

    def names(self) -> list[str]:
        """All option values, sorted; no entry is imported."""
        path = importlib.import_module(self.package).__path__
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(path))

    def load(self, name: str) -> T:
        """Import one entry. An unknown name is the user's error and lists the known ones."""
        if name not in self.names():
            raise KvtoolError(f"unknown {self.noun} '{name}'", f"choose from {', '.join(self.names())}")
        module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
        return cast(T, getattr(module, self.attribute))
