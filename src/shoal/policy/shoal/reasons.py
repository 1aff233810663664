"""Reasons of the policy ``shoal``: a job's bid for a GPU beside the price at which all GPUs are wanted just once."""

from shoal.core.reasons import ReasonTemplate

OUTBID = ReasonTemplate(
    47,
    "OUTBID",
    "waits: it bids {bid for a GPU over the price:,.3g} of the price of a GPU, for {GPUs wanted:,.0f} GPUs; "
    "{time left at its soonest:span} left at its soonest, {lateness:,.3g} times as late as promised "
    "(choice within {gap of the choice:,.2g} % of the best)",
)
BOUGHT = ReasonTemplate(
    48,
    "BOUGHT",
    "runs on {GPUs granted:,.0f} GPUs: it bids {bid for a GPU over the price:,.3g} times the price; "
    "{time left at its soonest:span} left at its soonest, {lateness:,.3g} times as late as promised "
    "(choice within {gap of the choice:,.2g} % of the best)",
)
RESUMES = ReasonTemplate(
    50,
    "RESUMES",
    "runs on {GPUs granted:,.0f} GPUs: it is resumed on {its node}, where it bids more than the jobs it replaces",
)
UNCONTESTED = ReasonTemplate(
    49,
    "UNCONTESTED",
    "runs on {GPUs granted:,.0f} GPUs that no waiting job could use; {time left at its soonest:span} left at its "
    "soonest",
)
