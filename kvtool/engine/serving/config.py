"""All options of `kvtool serve`, with their defaults. No torch: the command reads them for its help."""

from dataclasses import dataclass
from pathlib import Path

DEVICE_CODECS = ("raw", "int8", "k8v4", "int4")
"""How blocks on the device can be kept: what attention reads."""


@dataclass(frozen=True)
class ServeConfig:
    """Sizes in bytes; None sizes are chosen from the machine and the model (see `capacity.plan_tiers`).

    model: `embedded` or a directory; None takes the shards' own. device_blocks goes before device_memory.
    host_memory: None is half of the device's. disk_memory caps the write-back area in `disk`.
    signing_key: the shards must be signed with the key in this file.
    device_codec: how the device keeps full blocks. tier_codec: how host and disk keep them; None: as the
    device. kv_events: ZeroMQ endpoint.
    max_queue: requests that may wait beside the running ones. drain: seconds that shutdown waits.
    """

    shards: Path | None = None
    signing_key: Path | None = None
    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "auto"
    dtype: str = "auto"
    chat_template: str = "auto"
    block_size: int | None = None
    device_blocks: int | None = None
    device_memory: int | None = None
    host_memory: int | None = None
    disk: Path | None = None
    disk_memory: int = 8 << 30
    device_codec: str = "raw"
    tier_codec: str | None = None
    kv_events: str | None = None
    policy: str = "lru"
    normalizer: Path | None = None
    api_key_file: Path | None = None
    max_queue: int = 64
    max_running: int = 16
    chunk_tokens: int = 512
    body_limit: int = 16 << 20
    drain: float = 30.0
    log_format: str = "text"

    @property
    def codec_below(self) -> str:
        """How host and disk tiers keep blocks."""
        return self.tier_codec or self.device_codec
