"""The finding that every renderer of findings is shown."""

import pytest

from kvtool.report import Finding, Fix, Location


@pytest.fixture
def finding() -> Finding:
    """An error with every field set, in a file whose name needs quoting."""
    return Finding(
        code="KV101",
        name="clock-time",
        severity="error",
        message="a clock takes 3 values",
        fingerprint="f00d",
        location=Location("logs/a b.jsonl", 7, "messages[0].content", "system", 14, 33),
        slot="Time: {clock-time}",
        examples=["10:15:00"],
        requests=3,
        sessions=2,
        distinct_values=3,
        lost_tokens=1200,
        hit_rate_if_fixed=0.75,
        fix=Fix("move-to-last-user", True),
    )
