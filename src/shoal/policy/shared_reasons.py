"""Reasons that several policies give."""

from shoal.core.reasons import ReasonTemplate

FAIR_SHARE = ReasonTemplate(
    4,
    "FAIR_SHARE",
    "runs on its share: {GPUs of its share:,.6g} GPUs of an equal {GPUs of an equal share:,.6g}",
)
MATCHED = ReasonTemplate(
    6,
    "MATCHED",
    "runs now: matched to {kind}, expected to take {expected time to its end:span}",
)
STRETCHED = ReasonTemplate(
    11,
    "STRETCHED",
    "runs on {GPUs granted:,.0f} GPUs: the last made it {gain of the last GPU in percent:,.4g}% faster, one more "
    "would make it {gain of one more GPU in percent:,.4g}%",
)
LATER_ON_BETTER = ReasonTemplate(
    27,
    "LATER_ON_BETTER",
    "waits: number {place in the kind's queue:,.0f} in the queue of {kind}, expected to start "
    "there in {expected time to its start:span}",
)
ROUND_NEW = ReasonTemplate(
    31,
    "ROUND_NEW",
    "waits: it is new, and has a share from the next round on, at {start of the next round:time}",
)
ALLOTTED_LATER = ReasonTemplate(
    35,
    "ALLOTTED_LATER",
    "waits: GPUs are allotted anew at {time of the next allotment:time}; until then no job starts or moves",
)
