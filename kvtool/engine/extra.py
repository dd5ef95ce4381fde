"""The engine is an extra: a command that needs it says how to get it, before anything imports torch."""

from importlib import import_module

from kvtool.errors import KvtoolError

PACKAGES = ("torch", "fastapi", "httpx", "prometheus_client", "uvicorn")


def require_engine(command: str) -> None:
    """KvtoolError where torch or the server's packages are not installed."""
    require(command, *PACKAGES)


def require(command: str, *packages: str) -> None:
    """KvtoolError where one of `packages` of the engine's extra is not installed."""
    try:
        for name in packages:
            import_module(name)
    except ImportError as error:
        raise KvtoolError(
            f"kvtool {command} needs the engine, which is not installed ({error})",
            "pip install 'kvtool[engine]'",
        ) from error
