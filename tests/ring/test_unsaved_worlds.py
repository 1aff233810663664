"""Random small worlds of jobs that save and jobs that do not: every job ends, and no work above the limit is lost.

``make test-long`` tries a thousand of them; ``python tests/ring/test_unsaved_worlds.py N`` tries N.
"""

import random
import sys

from shoal.core.commands import Resize, Stop
from shoal.policy.registry import POLICIES, parse_policy
from shoal.sim.suspension import SuspensionCost
from shoal.testing.builders import Cycle, job, simulate
from shoal.workload.schema import Job

NAMES = (*POLICIES, "las:quantum=60", "gavel.max-min:space_sharing=true")
CLUSTERS = {"gpu:1x1": 1, "gpu:1x2": 2, "gpu:2x2": 4, "gpu:2x4": 8, "v100:1x2,k80:1x2": 2, "v100:1x4,p100:2x2": 4}
SUSPENSIONS = (None, SuspensionCost(), SuspensionCost(bytes_per_gpu=8_000_000_000, memory=20_000_000_000))
"""No node suspends jobs; all do, at once; or in 4 s for each GPU, with room for two GPUs."""
MOST_CYCLES = 20_000


def some_job(draw: random.Random, name: str, most: int) -> Job:
    gpus = draw.choice([n for n in (1, 1, 1, 2, 3, 4, 8) if n <= most])
    kind = draw.choice(["yes", "auto", "auto", "no"])
    elastic = draw.random() < 0.3
    return job(
        name,
        draw.choice([0, 0, 10, 60, draw.randint(0, 800)]),
        gpus,
        draw.choice([15, 60, 300, draw.randint(1, 2500)]),
        min_gpus=draw.randint(1, gpus) if elastic else None,
        max_gpus=draw.randint(gpus, most) if elastic else None,
        preemptible=kind,
        save_every=None if kind == "yes" else draw.choice([None, None, 30.0, 200.0]),
        declares_work=draw.random() < 0.6,
        tenant=draw.choice("ab"),
    )


def check_world(seed: int) -> None:
    draw = random.Random(seed)
    cluster = draw.choice(list(CLUSTERS))
    rows = [some_job(draw, f"j{i}", CLUSTERS[cluster]) for i in range(draw.randint(2, 8))]
    policy, limit = draw.choice(NAMES), draw.choice([0.0, 60.0, 600.0])
    told = f"seed {seed}, {policy} on {cluster}"

    def watch(cycle: Cycle) -> None:
        moment = cycle.snapshot
        assert moment.cycle < MOST_CYCLES, f"{told}: {MOST_CYCLES} decisions and still not done"
        for command in cycle.judgement.commands:
            if isinstance(command, Stop | Resize):
                view = moment.jobs[moment.register.ids[command.job]]
                assert view.unsaved <= limit, f"{told}, t = {moment.now:g}: {view.id} loses {view.unsaved:g} s"
                assert view.spec.preemptible != "no", f"{told}, t = {moment.now:g}: {view.id} must not be stopped"

    run = simulate(
        parse_policy(policy),
        rows,
        cluster,
        most_lost=limit,
        restart_cost=draw.choice([0.0, 5.0]),
        placement=draw.choice(("packed", "any", "rack", "network")),
        watch=watch,
        until=1e6,
        suspension=draw.choice(SUSPENSIONS),
    )
    for row in rows:
        assert row.id in run.completed, f"{told}: {row.id} never ends; {run.story(row.id)[-1:]}"


def test_every_job_ends_and_no_work_above_the_limit_is_lost_under_any_policy() -> None:
    for seed in range(100):
        check_world(seed)


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        check_world(seed)
    print(f"{sys.argv[1]} worlds: every job ended, no work above the limit was lost")
