"""The tuning constants of Themis."""

from dataclasses import dataclass

from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class ThemisTuning:
    """Constants of the agents' bids."""

    nothing: float = constant(2.0, "factor on the ρ of an app's fewest GPUs that gives its ρ with none")


TUNING = ThemisTuning()
