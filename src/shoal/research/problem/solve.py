"""Ask a policy for its decision on a problem."""

from typing import Any

from shoal.core.errors import InputError
from shoal.policy.gavel.share_update import ShareRule
from shoal.policy.pollux.policy import Pollux
from shoal.policy.registry import POLICIES, parse_policy
from shoal.policy.shockwave.policy import Shockwave
from shoal.policy.themis.policy import Themis
from shoal.research.problem.auction import auction_outcome
from shoal.research.problem.gpu_counts import gpu_counts, pollux_allotment
from shoal.research.problem.problem_file import Problem, check
from shoal.research.problem.time_shares import time_shares
from shoal.research.problem.window import window_plan

ELASTIC = ("srtf-e", "srsf-e", "max-min", "optimus", "afs-l", "afs-p", "afs-s", "rank")
"""Policies whose answer is a number of GPUs for each job."""


def solve(problem: Problem, spec: str) -> dict[str, Any]:
    """The policy's answer, with objective, gap and the CPU seconds it took; docs/solve.md has the fields."""
    policy = parse_policy(spec)
    check(problem)
    name = spec.partition(":")[0]
    if name in ELASTIC:
        answer = gpu_counts(problem, policy)
    elif isinstance(policy, Pollux):
        answer = pollux_allotment(problem, policy)
    elif isinstance(policy, Themis):
        answer = auction_outcome(problem)
    elif isinstance(policy, Shockwave):
        answer = window_plan(problem, policy, layout_given="layout=" in spec)
    elif isinstance(policy, ShareRule):
        answer = time_shares(problem, policy)
    else:
        solvable = (*ELASTIC, "pollux", "themis", "shockwave")
        known = [other for other in POLICIES if other in solvable or other.startswith("gavel.")]
        raise InputError("policy", name, f"cannot be solved on a problem file; choose one of {', '.join(known)}")
    return {"policy": spec, **answer}
