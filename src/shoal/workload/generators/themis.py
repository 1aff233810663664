"""Themis's workloads: apps that search hyper-parameters, on nodes of unequal size.

Workload 2, the default, halves trials successively. Workload 1 stands for the paper's trace of jobs of Hyperdrive, of
which it says that all have 1 or 2 GPUs (§6.2): trials keep their gang and are stopped by their performance curves.

From the paper: one app in ten is a single job; the others have up to a hundred trials and halve them repeatedly, with
gangs twice as large for the trials that are left, so that an app's demand for GPUs stays constant (§2.2, §4.3.2, §6.1).
Many apps are ten times shorter than the median, and many ten times longer (§2.2). Speed is proportional to the GPUs,
and network-intensive apps are slower across machines (eq. 1). The paper's measurements (Table 1) have VGG16 for
network-intensive models and Inception-v3 for others; these two represent all of Table 4, and ``network`` is the
fraction of VGG16, which figures 15 and 16 vary. The simulated cluster (§6.1) has 16 machines of 8 GPUs, 6 of 4 and 16
of 1: 168 GPUs, although the paper's text says 256.

Our choices where the paper says nothing, or refers to a figure (8) of two distributions: 8, 16 or 32 trials and first
gangs of 2 or 4 GPUs, equally likely (workload 1 has gangs of 1 or 2, workload 2 larger ones); an app with all the GPUs
it can use takes log-uniformly from a tenth to ten times ``hours`` (the trace's median is 3.75 hours, §3.1.1, but the
paper scales its trace down by an unknown factor); a trial can run on any number of GPUs up to its gang; arrivals are
Poisson, at more than twice the rate the cluster can serve; the final loss of a trial is uniform from 0.1 to 0.9 and its
pace log-uniform from 5 to 50, so trials may overtake each other.

Reference: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020.
"""

from dataclasses import dataclass

from shoal.core.errors import InputError
from shoal.perf.catalog import ModelType, catalog
from shoal.workload.generators.gavel import whole_steps
from shoal.workload.generators.randomness import RandomStream
from shoal.workload.schema import Job

CLUSTER = "p100:16x8,p100:6x4,p100:16x1"
"""The paper's heterogeneous cluster, with the kind of GPU that its Table 1 was measured on."""

_TRIALS = (8, 16, 32)
_GANGS = (2, 4)
_NARROW_GANGS = (1, 2)
_SPREAD = 10.0
_SINGLE = 0.1


@dataclass(frozen=True, slots=True)
class ThemisOptions:
    """Mean seconds between apps, their median hours, the fraction that is network-intensive, and their searcher.

    ``workload`` is 1 or 2; workload 1 ignores ``search``. ``widest`` is the most GPUs that a trial can use.
    """

    interarrival: float = 900.0
    hours: float = 1.0
    network: float = 0.5
    search: str = "halving:eta=2"
    workload: int = 2
    widest: int = 128


def generate(rng: RandomStream, count: int, options: ThemisOptions) -> list[Job]:
    """Generate ``count`` trials, app by app; the last app may have fewer trials than it would."""
    if options.network > 1.0:
        raise InputError("network", options.network, "must be a share of the apps, at most 1")
    if options.workload not in (1, 2):
        raise InputError("workload", options.workload, "must be 1 or 2, the paper's workloads")
    types = {t.model: t for t in catalog().types()}
    jobs: list[Job] = []
    at, app = 0.0, 0
    while len(jobs) < count:
        model_type = types["VGG16" if rng.chance(options.network) else "Inception-v3"]
        jobs += _app(rng, f"app-{app}", at, model_type, options)
        at += rng.exponential(options.interarrival)
        app += 1
    return jobs[:count]


def _app(rng: RandomStream, name: str, submitted: float, model_type: ModelType, options: ThemisOptions) -> list[Job]:
    trials = 1 if rng.chance(_SINGLE) else rng.pick(_TRIALS)
    narrow = options.workload == 1
    gpus = rng.pick(_NARROW_GANGS if narrow else _GANGS)
    seconds = 3600.0 * options.hours * rng.log_uniform(1.0 / _SPREAD, _SPREAD)
    # All rungs take equally long, and each trains twice as much as the one before: 1 + 2 + 4 + … parts of a training.
    # Trials of workload 1 all run side by side.
    rungs = 1 if narrow else trials.bit_length()
    work = whole_steps(model_type, "p100", gpus, seconds / rungs * (2**rungs - 1))
    return [
        Job(
            id=f"{name}-{trial}",
            submitted=submitted,
            gpus=gpus,
            work=work,
            min_gpus=1,
            max_gpus=gpus if narrow else max(min(gpus * trials, options.widest), gpus),
            tenant=name,
            app=name,
            model=model_type.model,
            batch_size=model_type.batch_size,
            search="single" if trials == 1 else "curve" if narrow else options.search,
            loss=rng.uniform(0.1, 0.9),
            pace=rng.log_uniform(5.0, 50.0),
        )
        for trial in range(trials)
    ]
