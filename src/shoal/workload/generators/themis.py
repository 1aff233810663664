"""Themis's workload 2: apps that search their hyper-parameters by successive halving, for a cluster of uneven machines.

From the paper: one app in ten is a single job, the others have up to a hundred trials and halve them, those that are
left on gangs twice as wide, so that an app wants as many GPUs to its end (§2.2, §4.3.2, §6.1); many apps are ten times
shorter than the median, and many ten times longer (§2.2); speed is in proportion to the GPUs, and network-intensive
apps are slower across machines (eq. 1). Of those the paper measures VGG16, and of the others Inception-v3 (Table 1), so
these two stand for all of Table 4; ``network`` is the share of the first, which figures 15 and 16 vary. The simulated
cluster (§6.1) is 16 machines of 8 GPUs, 6 of 4 and 16 of 1: 168, not the 256 it speaks of.

Our reading where the paper says nothing, or refers to a figure (8) of two distributions: 8, 16 or 32 trials and first
gangs of 2 or 4 GPUs (workload 1 has 1 or 2, and 2 more), all alike; an app that has all the GPUs it wants takes
log-uniformly from a tenth to ten times ``hours`` (the trace's median is 3.75 hours, §3.1.1, but the paper scales its
trace down and does not say how far); a trial can run on any number of GPUs up to its gang; arrivals are Poisson, at
more than twice the rate the cluster can serve while they last; what a trial's loss tends to is uniform from 0.1 to 0.9,
its pace log-uniform from 5 to 50, so trials may overtake each other.

Reference: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020.
"""

from dataclasses import dataclass

from shoal.core.errors import InputError
from shoal.perf.catalog import ModelType, catalog
from shoal.workload.generators.gavel import whole_steps
from shoal.workload.generators.randomness import Dice
from shoal.workload.schema import Job

CLUSTER = "p100:16x8,p100:6x4,p100:16x1"
"""The paper's heterogeneous cluster, of the GPUs that its Table 1 was measured on."""

_TRIALS = (8, 16, 32)
_GANGS = (2, 4)
_SPREAD = 10.0
_SINGLE = 0.1


@dataclass(frozen=True, slots=True)
class ThemisOptions:
    """Mean seconds between apps, the median of hours they take, network-intensive ones, and who schedules trials."""

    interarrival: float = 900.0
    hours: float = 1.0
    network: float = 0.5
    search: str = "halving:eta=2"


def generate(roll: Dice, count: int, options: ThemisOptions) -> list[Job]:
    """The trials of as many apps as it takes; the last has fewer where ``count`` cuts it off."""
    if options.network > 1.0:
        raise InputError("network", options.network, "must be a share of the apps, at most 1")
    types = {t.model: t for t in catalog().types()}
    jobs: list[Job] = []
    at, app = 0.0, 0
    while len(jobs) < count:
        kind = types["VGG16" if roll.chance(options.network) else "Inception-v3"]
        jobs += _app(roll, f"app-{app}", at, kind, options)
        at += roll.exponential(options.interarrival)
        app += 1
    return jobs[:count]


def _app(roll: Dice, name: str, submitted: float, kind: ModelType, options: ThemisOptions) -> list[Job]:
    trials = 1 if roll.chance(_SINGLE) else roll.pick(_TRIALS)
    gpus = roll.pick(_GANGS)
    alone = 3600.0 * options.hours * roll.log_uniform(1.0 / _SPREAD, _SPREAD)
    # Halving makes rungs of equal length, the first of which is this part of a training: 1 + 2 + 4 + … parts in all.
    rungs = trials.bit_length()
    work = whole_steps(kind, "p100", gpus, alone / rungs * (2**rungs - 1))
    return [
        Job(
            id=f"{name}-{trial}",
            submitted=submitted,
            gpus=gpus,
            work=work,
            min_gpus=1,
            max_gpus=gpus * trials,
            tenant=name,
            app=name,
            model=kind.model,
            batch_size=kind.batch_size,
            search="single" if trials == 1 else options.search,
            loss=roll.uniform(0.1, 0.9),
            pace=roll.log_uniform(5.0, 50.0),
        )
        for trial in range(trials)
    ]
