"""CPU time of repeated calls, and of the cycles of a simulation."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from time import process_time
from typing import TypeVar

from shoal.engine.loop import judge
from shoal.engine.moves import StopStartPlanner
from shoal.placement.packed import PackedPlacer
from shoal.policy.registry import parse_policy
from shoal.scenario.backend import make_backend
from shoal.scenario.scenario import Scenario
from shoal.workload.schema import Job

_T = TypeVar("_T")


def best_of(times: int, call: Callable[[], _T]) -> tuple[float, _T]:
    """Return the least CPU seconds of ``times`` calls (at least one), and the last call's result."""
    seconds = []
    for _ in range(times):
        begin = process_time()
        result = call()
        seconds.append(process_time() - begin)
    return min(seconds), result


def cycle_seconds(scenario: Scenario, jobs: Sequence[Job]) -> Iterator[float]:
    """Yield the CPU seconds of each cycle (freeze, decide, place and plan) of a simulation, without an end."""
    known = scenario.speeds()
    backend, state = make_backend(scenario, jobs, known), scenario.make_state(known)
    chosen, placer, planner, review_at = parse_policy(scenario.policy), PackedPlacer(), StopStartPlanner(), inf
    while True:
        batch = backend.wait(review_at)
        state.apply_events(batch.now, batch.events)
        begin = process_time()
        judgement = judge(state.freeze(), chosen, placer, planner)
        yield process_time() - begin
        state.apply_commands(judgement.commands)
        state.end_cycle(judgement.decision.carry)
        backend.send(judgement.commands)
        review_at = judgement.decision.review_at
