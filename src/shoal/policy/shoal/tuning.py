"""Constants of the policy ``shoal``."""

from dataclasses import dataclass

from shoal.policy.goodput_options import OPTIONS, OptionsTuning
from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class ShoalTuning:
    """Constants of the market."""

    shortest: float = constant(30.0, "seconds left below which jobs count alike: such estimates are noise")
    places: float = constant(0.5, "power of a job's place among the live jobs, the longest being the first")
    nearer: float = constant(0.8, "factor on a running job's time left in its place")
    unknown_length: float = constant(0.2, "power of the time left by which a bid falls where no length is declared")
    unknown_ahead: float = constant(600.0, "seconds on the even share that a job without history has left at least")
    trust: float = constant(0.5, "power of the history's median in the guess of a length, beside the rule without one")
    unmeasured: float = constant(300.0, "seconds on the even share left of an adaptive job that was never measured")
    overrun: float = constant(0.02, "part of its declared work past which a job's work is taken to be twice as much")
    overdue: float = constant(20.0, "times as late as on its promised share at which a job bids more than all others")
    overdue_least: float = constant(6000.0, "seconds after its arrival before which no job is overdue")
    first_start: float = constant(0.5, "part of the cost of a restart that a first start counts")
    kept_rate: float = constant(
        0.8, "least part of its promised rate on which a job starts that may not be moved again"
    )
    unknown_stay: float = constant(2.0, "factor on the bids of a running rigid job whose length is not declared")
    lasting: float = constant(300.0, "seconds for which an allocation is expected to last at most")
    margin: float = constant(360.0, "seconds before its latest start at which a job presses on the end of all")
    longer: float = constant(4.0, "most times its predicted length that a job of changing batch size may take")
    spare: float = constant(0.02, "part of its time that a job with a deadline is given to spare")
    review_part: float = constant(0.05, "part of the median time left after which the allotment is reviewed")
    review_least: float = constant(60.0, "least seconds between reviews without an event")
    review_most: float = constant(1800.0, "most seconds between reviews")
    large: float = constant(20_000, "options of all jobs above which the choice need not be the very best")
    tolerance: float = constant(0.005, "part of the bound by which it may then be worth less, before seats are found")
    options: OptionsTuning = OPTIONS


TUNING = ShoalTuning()
