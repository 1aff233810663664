"""Reasons of the policy ``shoal``: a job's bid for a GPU beside the price at which all GPUs are wanted just once."""

from shoal.core.reasons import ReasonTemplate

OUTBID = ReasonTemplate(
    47,
    "OUTBID",
    "waits for {GPUs wanted:,.0f} GPUs: its bid for a GPU is {bid for a GPU over the price:,.2f} of the price; "
    "about {time left at its soonest:span} of run left, lateness {lateness:,.2f} "
    "(choice within {gap of the choice:,.2g} % of the best)",
)
BOUGHT = ReasonTemplate(
    48,
    "BOUGHT",
    "runs on {GPUs granted:,.0f} GPUs: its bid for a GPU is {bid for a GPU over the price:,.2f} times the price; "
    "about {time left at its soonest:span} of run left, lateness {lateness:,.2f} "
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
    "runs on {GPUs granted:,.0f} GPUs that no waiting job could use; about {time left at its soonest:span} of run left",
)
