"""The tuning constants of Shockwave."""

from dataclasses import dataclass

from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class ShockwaveTuning:
    """Constants of the plans."""

    margin: float = constant(2.0, "rounds by which a job is planned to run longer than predicted")
    nearer: float = constant(0.7, "factor on the remaining time of a running job in the order of rounds")


TUNING = ShockwaveTuning()
