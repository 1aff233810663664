"""What a job's agent reports of how well it trains: fitted step times by accelerator kind, noise scale, batch limits.

Values only; the formulas over them live in ``perf.goodput``. Seconds and samples throughout.

References: Qiao et al., OSDI 2021, §3 (goodput); Jayaram Subramanya et al., SOSP 2023 (one fit per kind).
"""

from dataclasses import dataclass

from shoal.core.job import BatchSetting


@dataclass(frozen=True, slots=True)
class StepFit:
    """How long a training step takes on one kind of GPU: Pollux's seven parameters and a third pair for racks.

    A pass over m samples on each GPU takes ``compute[0] + compute[1]·m`` seconds. Synchronising R ≥ 2 GPUs takes
    ``pair[0] + pair[1]·(R − 2)`` seconds with the pair of the farthest distance spanned: ``node`` within a node,
    ``network`` over nodes of a rack, ``rack`` over racks. ``gamma`` in [1, 10] says how far the two overlap.
    ``most_local`` is the most samples a GPU of this kind holds. ``gpus`` and ``nodes`` are the most the fit has
    seen; 0 where nothing was measured on this kind and the figures are carried over from another. ``error`` is the
    root mean squared log error on what was measured.
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
    """All a scheduler may know of a job's goodput: what its agent last reported, or what its model is remembered by.

    ``fits`` holds one fit for each kind, in no order that matters. ``noise`` is the gradient noise scale φ in samples,
    measured at a total batch of ``noise_batch``. ``seen_gpus`` is the most GPUs it ever trained on, of any kind: it may
    be given twice as many. ``batch`` is what it trains with now. ``remembered`` marks a report that rests on other
    jobs of the same model and on no measurement of this one.
    """

    fits: tuple[tuple[str, StepFit], ...]
    noise: float
    noise_batch: int
    seen_gpus: int
    batch: BatchSetting
    remembered: bool = False
