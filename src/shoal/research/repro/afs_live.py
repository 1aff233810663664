"""AFS's figures 7 and 15 on the embedded cluster, scaled down to the six jobs and four GPUs of the fidelity table.

The paper ran two traces on 64 GPUs over CoDDL. Here PyTorch processes with step times like those of GPUs run under
Tiresias, Themis, Optimus and AFS-P; times are seconds. Figure 15 compares each live run with its simulation.
"""

from collections.abc import Mapping, Sequence

from shoal.research.repro.context import ReproContext
from shoal.research.repro.fidelity import FidelityResult, live_results
from shoal.research.repro.fidelity_queue import CLUSTER, QUEUE, START_SECONDS, FidelityCase
from shoal.research.repro.paired import PairedRatio, all_at_least, all_hold, paired_ratio
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Line, Table, table

CASES = (
    FidelityCase("tiresias", (("thresholds", "20/40"),)),
    FidelityCase("themis", (("lease", 20.0),), elastic=True),
    FidelityCase("optimus", (("interval", 20.0),), elastic=True),
    FidelityCase("afs-p", (("unit", 20.0),), elastic=True),
)

PAPER_GAINS = {"tiresias": (3.54, 2.93), "optimus": (1.12, 1.66), "themis": (1.22, 1.30)}
"""AFS-P's gain in mean completion time over each, on traces 9 and 3 (§5.3)."""

PAPER_ERRORS = {"tiresias": 0.005, "afs-p": 0.052}
"""Error of the simulator in figure 15."""

Live = Mapping[str, Sequence[FidelityResult]]
"""Results by policy and repeat."""

_STORED = "afs-live", "afs-"
"""The name in the keys of stored results, and the beginning of the folders' names."""


def _scale() -> str:
    return (
        f"scaled down: {len(QUEUE)} PyTorch jobs of a minute on {CLUSTER}, processes without GPUs, not 64 GPUs; a "
        f"start takes {START_SECONDS:.0f} s, a large part of a job, and a change of shares 4 ms in the paper"
    )


def gain_table(found: Live) -> Table:
    """Figure 7: mean completion times on the live cluster, and AFS-P's gains."""
    ours = [run.live_jct for run in found["afs-p"]]
    gains: dict[str, PairedRatio] = {p: paired_ratio([r.live_jct for r in found[p]], ours) for p in PAPER_GAINS}
    rows: list[list[Cell]] = []
    for policy, runs in found.items():
        theirs = "–".join(f"{gain:.2f}" for gain in sorted(PAPER_GAINS.get(policy, (1.0,))))
        gain = str(gains[policy]) if policy in gains else "1"
        rows.append(
            [policy, theirs, sum(r.live_jct for r in runs) / len(runs), gain, runs[0].restarts, runs[0].resizes]
        )
    line = Line("ours", tuple((float(i), gain.mean) for i, gain in enumerate(gains.values())))
    theirs_lines = tuple(
        Line(f"paper, trace {trace}", tuple((float(i), PAPER_GAINS[p][at]) for i, p in enumerate(gains)))
        for at, trace in enumerate((9, 3))
    )
    return table(
        "figure 7: mean completion times on the embedded cluster, and AFS-P's gain",
        [
            "policy",
            "paper's gain",
            Column("ours, s", ".1f"),
            "AFS-P's gain",
            Column("restarts", ".0f"),
            Column("resizes", ".0f"),
        ],
        rows,
        "AFS-P better than Tiresias-L 2.93 to 3.54 times, Optimus 1.12 to 1.66, Themis 1.22 to 1.30",
        _scale(),
        verdict=all_at_least("AFS-P's gain", {f"over {policy}": gain for policy, gain in gains.items()}, 1.0),
        charts=[Chart("figure 7", "policy", "AFS-P's gain", theirs_lines, (line,), "bars", tuple(gains))],
    )


def error_table(found: Live) -> Table:
    """Figure 15: the simulator's error for Tiresias-L and AFS-P."""
    rows: list[list[Cell]] = []
    claims: dict[str, bool] = {}
    for policy, theirs in PAPER_ERRORS.items():
        runs = found[policy]
        errors = [abs(run.simulated_jct / run.live_jct - 1.0) for run in runs]
        mean = sum(errors) / len(errors)
        live, simulated = (sum(getattr(r, f"{side}_jct") for r in runs) / len(runs) for side in ("live", "simulated"))
        rows.append([policy, live, simulated, theirs, mean, mean - theirs])
        claims[f"{policy}'s error is at most {theirs:.1%} (ours {mean:.1%})"] = mean <= theirs
    return table(
        "figure 15: simulated and live mean completion times",
        [
            "policy",
            Column("live, s", ".1f"),
            Column("simulated, s", ".1f"),
            Column("paper's error", ".1%"),
            Column("ours", ".1%"),
            Column("difference", "+.1%"),
        ],
        rows,
        "0.5 % with Tiresias-L and 5.2 % with AFS-P",
        _scale(),
        verdict=all_hold(claims),
    )


def _figure_7(context: ReproContext) -> list[Table]:
    return [gain_table(live_results(context, CASES, *_STORED))]


def _figure_15(context: ReproContext) -> list[Table]:
    return [error_table(live_results(context, [case for case in CASES if case.policy in PAPER_ERRORS], *_STORED))]


_PAPER = "AFS (NSDI '21)"
REPRODUCTIONS = (
    Reproduction("afs-7", _PAPER, "policies on the embedded cluster, scaled down", _figure_7),
    Reproduction("afs-15", _PAPER, "simulator and embedded cluster, scaled down", _figure_15),
)
