"""Reasons that several policies give."""

from shoal.core.reasons import ReasonTemplate

FAIR_SHARE = ReasonTemplate(
    4,
    "FAIR_SHARE",
    "runs on its share: {0:,.6g} GPUs of an equal {1:,.6g}",
    ("GPUs of its share", "GPUs of an equal share"),
)
MATCHED = ReasonTemplate(
    6,
    "MATCHED",
    "runs now: matched to {0}, expected to take {1:,.6g} s",
    ("kind", "expected seconds to its end"),
)
STRETCHED = ReasonTemplate(
    11,
    "STRETCHED",
    "runs on {0:,.0f} GPUs: the last made it {1:,.4g}% faster, one more would make it {2:,.4g}%",
    ("GPUs granted", "gain of the last GPU in percent", "gain of one more GPU in percent"),
)
LATER_ON_BETTER = ReasonTemplate(
    27,
    "LATER_ON_BETTER",
    "waits: number {1:,.0f} in the queue of {0}, expected there in {2:,.6g} s",
    ("kind", "place in the kind's queue", "expected seconds to its start"),
)
ROUND_NEW = ReasonTemplate(
    31,
    "ROUND_NEW",
    "waits: it is new, and has a share from the next round on, at t = {0:,.6g} s",
    ("start of the next round in seconds",),
)
ALLOTTED_LATER = ReasonTemplate(
    35,
    "ALLOTTED_LATER",
    "waits: GPUs are allotted anew at t = {0:,.6g} s; until then nobody moves",
    ("time of the next allotment in seconds",),
)
