"""The evaluation of predicted lengths: intervals hold what they say, on generated jobs and on public traces."""

from pathlib import Path

import pytest

from shoal.research.repro.context import ReproContext
from shoal.research.repro.lengths import TRACES, WEEK, evaluate
from shoal.workload.generators.registry import generate

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def test_intervals_of_recurring_jobs_hold_about_80_percent_and_err_less_than_the_rule() -> None:
    scores = evaluate(generate("helios", jobs=6000, seed=11).jobs, WEEK / 2)
    for score in scores[:3]:
        assert score.count > 400
        assert 0.72 < 1.0 - score.below - score.above < 0.88
        assert score.error < score.rule_error


@pytest.mark.skipif(not (DATA / "traces").exists(), reason="the public traces are not here")
def test_intervals_on_alibaba_pods_hold_about_80_percent() -> None:
    trace = TRACES[2]
    at_submission = evaluate(trace.read(ReproContext(DATA)), trace.first_week * WEEK)[0]
    assert 0.75 < 1.0 - at_submission.below - at_submission.above < 0.85
