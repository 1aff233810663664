"""Goodput reports: fitted step times by kind of GPU and the gradient noise scale. Units: seconds and samples.

Values only; the formulas over them are in ``perf.goodput``.

References: Qiao et al., OSDI 2021, §3 (goodput); Jayaram Subramanya et al., SOSP 2023 (one fit per kind).
"""

from dataclasses import dataclass

from shoal.core.job import BatchSetting


@dataclass(frozen=True, slots=True)
class StepFit:
    """A model of the time of a training step on one kind of GPU: Pollux's seven parameters and a third pair for racks.

    A pass over m samples on each GPU takes ``compute[0] + compute[1]·m`` seconds. Synchronising R ≥ 2 GPUs takes
    ``pair[0] + pair[1]·(R − 2)`` seconds with the pair of the farthest distance spanned: ``node`` within a node,
    ``network`` over nodes of a rack, ``rack`` over racks. ``gamma`` in [1, 10] says how far the two overlap.
    ``most_local`` is the most samples a GPU of this kind holds. ``gpus`` and ``nodes`` are the most of which there are
    measurements; 0 if there are none on this kind and the figures come from another. ``error`` is the root mean squared
    log error on the measurements.
    """

    compute: tuple[float, float]
    node: tuple[float, float]
    network: tuple[float, float]
    rack: tuple[float, float]
    gamma: float
    most_local: int
    gpus: int = 0
    nodes: int = 0
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class GoodputReport:
    """A job's goodput, from its agent's last report or from other jobs of the same model.

    ``fits`` holds one fit for each kind, in any order. ``noise`` is the gradient noise scale φ in samples, measured at
    a total batch of ``noise_batch``. ``seen_gpus`` is the most GPUs the job has trained on, of any kind; the job may be
    granted twice as many. ``batch`` is the present setting. ``remembered`` marks a report that rests only on other jobs
    of the same model.
    """

    fits: tuple[tuple[str, StepFit], ...]
    noise: float
    noise_batch: int
    seen_gpus: int
    batch: BatchSetting
    remembered: bool = False
