"""The tuning constants of Gavel's policies."""

from dataclasses import dataclass

from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class GavelTuning:
    """Constants of the round-based mechanism and of the solvers' answers."""

    window: int = constant(60, "rounds in a row over which time received follows the shares")
    reserved_after: float = constant(2.0, "rounds a gang may be owed, whatever its share, before it goes first")
    lately: float = constant(4.0, "weight of the debt of the last rounds beside that of all rounds")
    total: float = constant(2.0, "weight of a job's debt on all kinds beside that on each kind")
    recovers: float = constant(0.3, "part of a round that a job with a full share can make up for beside gangs")
    short: float = constant(1.2, "rounds a one-GPU job may be short of over the window before rounds repeat")
    keep: float = constant(0.5, "bonus in rounds for the seats that a job holds already")
    most_behind: float = constant(50.0, "most rounds owed that are kept when shares change")
    welcome: float = constant(0.4, "rounds that a new job is owed from the start")
    least_share: float = constant(1e-6, "share of time below which a job has none")
    accepted_gap: float = constant(1e-6, "relative gap and residual up to which a solver's answer is used")
    set_aside: float = constant(0.1, "part of the time until a deadline that is set aside for restarts")


TUNING = GavelTuning()
