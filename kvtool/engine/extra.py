"""The engine is an extra: a command that needs it says how to get it, before anything imports torch."""

from importlib import import_module

from kvtool.errors import KvtoolError


def require_engine(command: str) -> None:
    """KvtoolError where torch is not installed."""
    try:
        import_module("torch")
    except ImportError as error:
        raise KvtoolError(
            f"kvtool {command} needs the engine, which is not installed ({error})",
            "pip install 'kvtool[engine]'",
        ) from error
