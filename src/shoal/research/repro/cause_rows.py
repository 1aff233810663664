"""Why recorded runs differ from the papers, as far as the cause was found, by reproduction.

A cause is the beginning of the titles of the tables it explains (empty: all that differ), few words for the table of a
paper's figures, and sentences that a full run prints below the verdict. Their numbers are of runs made to find the
cause, not of the reproduction.
"""

from collections.abc import Mapping

Causes = tuple[tuple[str, str, str], ...]

_GAVEL: Mapping[str, Causes] = {
    "gavel-9": (
        (
            "",
            "a shorter span: queues still grow after 13 days",
            "the span explains much of it: at this load queues still grow after 13 days. With 1,800 jobs in 40 days "
            "on the same 36 GPUs the first factor is 2.6 and 2.1 (seeds 0 and 1; jobs 1,300 to 1,700), and with 5,200 "
            "jobs on the paper's 108 GPUs 2.7 (seed 0; jobs 4,000 to 5,000). At 6.4 jobs/h it is smaller again, 2.2 "
            "and 1.8, since Gavel's queues grow too.",
        ),
    ),
    "gavel-10": (
        (
            "",
            "a shorter span: queues still grow after 13 days",
            "part of it is the span, as in figure 9: with 1,300 jobs in 62 days (jobs 900 to 1,200) the first factor "
            "is 1.7 and 1.8 (seeds 0 and 1). What is missing to 2.2 was not found; Gavel's own queues grow at this "
            "load.",
        ),
    ),
    "gavel-11": (
        (
            "",
            "a shorter span: queues still grow after 13 days",
            "part of it is the span, as in figure 9: with 1,300 jobs in 62 days (seed 0; jobs 900 to 1,200) the "
            "factors are 1.7 and 2.0. What is missing to 3 and 2.8 was not found; Gavel's own queues grow at this "
            "load.",
        ),
    ),
    "gavel-12": (
        (
            "",
            "GPUs of a partition idle while its entity has few jobs",
            "a job uses one GPU at most, so while an entity has fewer jobs than its partition has GPUs, the others "
            "idle. An agnostic policy that passes them on loses 0.21 (0.18 to 0.24), which agrees with the paper; the "
            "paper does not say what becomes of them in its partition.",
        ),
    ),
    "gavel-15a": (
        (
            "",
            "freed GPUs are given at once here, not at the next round",
            "a GPU that becomes free inside a round is given at once here, so long rounds cost little, while each "
            "restart costs 5 s. With free restarts the mean rises by 0.8 % from 6 to 48 minutes, and with GPUs given "
            "only when a round begins by 1.9 % (seed 0, half the span).",
        ),
    ),
    "gavel-7.3": (
        (
            "§7.3: makespan",
            "a FIFO that divides time among kinds",
            "the agnostic FIFO here divides a job's time among the kinds, so no job stays on a K80 to its end. "
            "`fifo`, which leaves a job on the GPUs it started on, takes 2.6 and 7.6 times as long as Gavel (seeds 0 "
            "and 1). The paper does not say which its baseline is.",
        ),
        (
            "§7.3: first in",
            "a shorter span: queues still grow after 13 days",
            "the span, as in figure 9: with 1,800 jobs in 40 days (jobs 1,300 to 1,700) the first factor is 5.6 and "
            "3.1 (seeds 0 and 1).",
        ),
        (
            "§7.3: LAS with a fifth",
            "a shorter span: queues still grow after 13 days",
            "the span, as in figure 9: with 1,800 jobs in 40 days (jobs 1,300 to 1,700) the factors are 1.6 and 2.5 "
            "(seed 0), 2.1 and 1.9 (seed 1).",
        ),
        (
            "§7.3: cost",
            "load and prices are not printed",
            "the paper does not print its load. With a job in eight hours instead of two (100 jobs, seeds 0 and 1) no "
            "job is late under the most throughput, costs are 1.5 and 1.3 times lower, and no deadline is missed with "
            "SLOs. Without them 50 to 55 % still are: two thirds of the A3C jobs, which alone are the paper's 35 %, "
            "and a third of the ResNet-50 jobs, which run on P100s here, where at our prices their progress costs 1 % "
            "less than on V100s.",
        ),
    ),
    "gavel-table4": (
        (
            "",
            "shares are followed more closely here, with more moves",
            "our rounds keep shares within about 2 points over any 60 rounds, and move jobs more often for it. With a "
            "bonus of 5 rounds for the seats that a job holds and no weight on the debt of the last rounds (`keep=5`, "
            "`lately=0`, `recovers=0`), 0.13 to 0.22 of the rounds are without renewal, as in the paper, at the same "
            "mean completion time (3.60 h).",
        ),
    ),
}

CAUSES: Mapping[str, Causes] = {**_GAVEL}
"""By reproduction."""
