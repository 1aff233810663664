"""Stage one of elastic policies on several kinds, against a plain loop over the jobs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.policy.elastic.admission import admit
from shoal.policy.elastic.curves import curve_table
from shoal.testing.builders import job, snapshot

KINDS = ((), ("v100",), ("k80",), ("v100", "k80"))


def moment_of(rows: list[tuple[int, int, int, bool]]) -> Snapshot:
    """Jobs of (fewest, further GPUs, index into ``KINDS``, whether it runs); those that run fill nodes of one kind."""
    jobs = [
        job(f"j{i}", gpus=few + more, min_gpus=few, max_gpus=few + more, kinds=KINDS[allowed] or None)
        for i, (few, more, allowed, _) in enumerate(rows)
    ]
    held, node = {}, 0
    for i, (few, _, allowed, runs) in enumerate(rows):
        if runs and node < 4 and allowed != 2 - node // 2:
            held[f"j{i}"], node = Placement(((node, few),)), node + 1
    return snapshot(jobs, "v100:2x4,k80:2x4", held=held, now=10.0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=12))
def test_each_job_in_turn_stays_or_takes_the_kind_with_the_highest_rate_times_share(
    rows: list[tuple[int, int, int, bool]],
) -> None:
    moment = moment_of(rows)
    order = np.arange(len(rows))[::-1]
    found = admit(moment, order, curve_table(moment, None))
    free, speeds, current = [8, 8], moment.columns.speeds, moment.columns.kind.tolist()
    for i in order.tolist():
        few, more, _, _ = rows[i]
        fits = [k for k in range(2) if speeds[i, k] > 0 and few <= free[k]]
        shares = [8 / (8 - left + few) if more else 1.0 for left in free]
        best = max(fits, key=lambda k: (speeds[i, k] * shares[k], shares[k], -k), default=-1)
        kind = current[i] if current[i] in fits else best
        assert (int(found.low[i]), int(found.kinds[i])) == ((few, kind) if kind >= 0 else (0, -1))
        if kind >= 0:
            free[kind] -= few
    assert found.free == tuple(free)
