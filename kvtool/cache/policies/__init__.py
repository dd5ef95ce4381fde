"""Eviction policies, one file each: `lfu_da.py` is `--policy lfu-da` and exposes POLICY."""

from typing import TYPE_CHECKING

from kvtool.registry import Registry

if TYPE_CHECKING:
    from kvtool.cache.policy import Policy

POLICIES: "Registry[Policy]" = Registry("kvtool.cache.policies", "POLICY", "policy")
