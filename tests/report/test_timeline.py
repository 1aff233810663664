import numpy as np
import pytest

from shoal.report.history import read_history
from shoal.report.metrics import job_table
from shoal.report.timeline import timeline
from shoal.store.journal import MemoryJournal


def test_three_jobs_over_time_worked_by_hand(three_jobs: MemoryJournal) -> None:
    line = timeline(read_history(three_jobs.raw()))
    assert line.edges.tolist() == [0.0, 5.0, 8.0, 10.0, 20.0, 22.0]
    assert line.live.tolist() == [2, 3, 3, 2, 1]
    # b waits until 10, c from 8 to 20.
    assert line.queue_length.tolist() == [1, 1, 2, 1, 0]
    assert line.busy.tolist() == [2, 4, 2, 4, 2]
    # These jobs scale linearly: rate over rate on one GPU is the number of GPUs, so CE is busy / 4.
    assert line.efficiency.tolist() == pytest.approx([0.5, 1.0, 0.5, 1.0, 0.5])
    # On one GPU b has 40 s left and c, with 3 of 5 done on two, 4 s: at the middle of each interval b adds t/40 until
    # 10, and c (t − 8)/4 from 8 to 20: 2.5/40, 6.5/40, the mean of 9/40 and 1/4, then 7/4.
    assert line.blocking.tolist() == pytest.approx([0.0625, 0.1625, 0.2375, 1.75, 0.0])


def test_thinning_keeps_the_averages_exact(three_jobs: MemoryJournal) -> None:
    history = read_history(three_jobs.raw())
    whole, thin = timeline(history), timeline(history, points=2)
    assert len(thin.busy) <= 2
    assert set(thin.edges.tolist()) <= set(whole.edges.tolist())
    for name in ("queue_length", "efficiency", "blocking", "busy", "live"):
        areas = [float((getattr(line, name) * np.diff(line.edges)).sum()) for line in (whole, thin)]
        assert areas[0] == pytest.approx(areas[1])
    assert float((thin.busy * np.diff(thin.edges)).sum()) == pytest.approx(float(job_table(history).gpu_seconds.sum()))
