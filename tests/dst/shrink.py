"""Shrink a failing plan: drop faults, requests and jobs while the trial still fails."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.dst.plan import Plan
from tests.dst.trial import Result, run_plan

_T = TypeVar("_T")

MOST_TRIALS = 400


def shrink(failed: Result, run: Callable[[Plan], Result] = run_plan, most: int = MOST_TRIALS) -> Result:
    """Return the result of a plan with no part that can be left out; at most ``most`` trials are run."""
    best, left = failed, most

    def fails(plan: Plan) -> bool:
        nonlocal best, left
        if left <= 0:
            return False
        left -= 1
        result = run(plan)
        if result.violation is not None:
            best = result
        return result.violation is not None

    changed = True
    while changed and left > 0:
        before = best.plan
        _drop(best.plan.faults, lambda faults: fails(replace(best.plan, faults=tuple(faults))))
        _drop(best.plan.requests, lambda requests: fails(replace(best.plan, requests=tuple(requests))))
        _drop(best.plan.jobs, lambda jobs: fails(replace(best.plan, jobs=tuple(jobs))))
        changed = best.plan != before
    return best


def _drop(parts: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> None:
    """Leave out ever smaller pieces of a list, as long as the trial fails without them."""
    kept, size = list(parts), max(1, len(parts) // 2)
    while kept and size:
        start = 0
        while start < len(kept):
            shorter = kept[:start] + kept[start + size :]
            if fails(shorter):
                kept = shorter
            else:
                start += size
        size //= 2
