"""cost: what is cheapest to lose leaves first: decayed frequency x rebuild cost x sharing sessions."""

from kvtool.cache.composite import DEFAULTS, key
from kvtool.cache.policy import Policy

POLICY = Policy("cost", key, DEFAULTS)
