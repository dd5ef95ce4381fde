"""A workload from rows short enough to read."""

import numpy as np
import pytest

from kvtool.analysis.build import build_workload
from kvtool.requests import BlockIds, Request, Source


@pytest.fixture(scope="session")
def log():
    """Makes a workload of blocks of 4 tokens from rows (seconds, session, block ids)."""

    def make(rows):
        return build_workload(
            [
                Request(
                    id=str(row),
                    source=Source("t", row),
                    arrival=int(time * 1e6),
                    session=session,
                    block_ids=BlockIds(np.array(ids), 4, 4 * len(ids)),
                )
                for row, (time, session, ids) in enumerate(rows)
            ],
            None,
        )

    return make
