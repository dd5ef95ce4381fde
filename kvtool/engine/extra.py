"""The engine is an extra: a command that needs it says how to get it, before anything imports torch."""

from importlib.util import find_spec

from kvtool.errors import KvtoolError

PACKAGES = ("torch", "fastapi", "httpx", "prometheus_client", "uvicorn")


def require_engine(command: str) -> None:
    """KvtoolError where torch or the server's packages are not installed."""
    require(command, *PACKAGES)


def require(command: str, *packages: str) -> None:
    """KvtoolError where one of `packages` of the engine's extra is not installed."""
    missing = [name for name in packages if not _installed(name)]
    if missing:
        raise KvtoolError(
            f"kvtool {command} needs the engine, which is not installed (no {', '.join(missing)})",
            "pip install 'kvtool[engine]'",
        )


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:  # an import hook that keeps a package out says so itself
        return False
