"""Verdicts and charts of Pollux's experiments: the statements of the paper's text, and whether our runs agree.

A statement about a difference between two policies is judged by workload, in pairs; intervals are at 95 %.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from shoal.research.repro.pollux_life import interval
from shoal.research.repro.table import REPRODUCES, Chart, Line, cannot_be_told, differs

HOUR = 3600.0
PLAIN, OPTIMUS, TIRESIAS = "pollux", "optimus", "tiresias:thresholds=57600"

Means = Mapping[tuple[str, str], Sequence[float]]
"""Mean JCT in seconds by workload; by folder of workloads and label of the policy."""

Judge = Callable[[Means, Sequence[str]], "ExperimentVerdict"]


@dataclass(frozen=True, slots=True)
class ExperimentVerdict:
    """A verdict, and charts to draw beside it."""

    verdict: str
    charts: tuple[Chart, ...] = ()


def below(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return by workload how far the first are below the second, as a fraction."""
    return [1.0 - a / b for a, b in zip(ours, theirs, strict=True)]


def near(what: str, found: Sequence[float], stated: float, within: float) -> str:
    """Return a fault if the mean of these is further than ``within`` from the stated fraction, else an empty text."""
    low, high = interval(found)
    if abs(fmean(found) - stated) <= within:
        return ""
    return f"{what} {fmean(found):.0%} ({low:.0%} to {high:.0%}) instead of {stated:.0%}"


def _joined(wrong: Sequence[str]) -> str:
    named = [one for one in wrong if one]
    return differs("; ".join(named)) if named else REPRODUCES


def _by_workload(means: Means, folder: str, labels: Sequence[str]) -> tuple[Line, ...]:
    found = [(label, means[folder, label]) for label in labels]
    return tuple(Line(label, tuple((n + 1.0, y) for n, y in enumerate(ys))) for label, ys in found)


def _jct(means: Means, folders: Sequence[str]) -> ExperimentVerdict:
    (folder,) = folders
    ours = means[folder, PLAIN]
    wrong = [
        near("below Tiresias", below(ours, means[folder, TIRESIAS]), 0.32, 0.05),
        near("below Optimus", below(ours, means[folder, OPTIMUS]), 0.48, 0.05),
    ]
    lines = _by_workload(means, folder, (PLAIN, TIRESIAS, OPTIMUS))
    return ExperimentVerdict(_joined(wrong), (Chart("mean JCT by workload", "workload", "s", (), lines),))


def _loads(means: Means, folders: Sequence[str]) -> ExperimentVerdict:
    loads = [_load(folder) for folder in folders]
    wrong = []
    for label in (TIRESIAS, OPTIMUS):
        gains = [fmean(below(means[folder, PLAIN], means[folder, label])) for folder in folders]
        if min(gains) <= 0.0 or max(gains) - min(gains) > 0.15:
            wrong.append(f"JCT below that of {label} by {', '.join(f'{gain:.0%}' for gain in gains)}")
    lines = tuple(
        Line(label, tuple((load, fmean(means[folder, label])) for load, folder in zip(loads, folders, strict=True)))
        for label in (PLAIN, TIRESIAS, OPTIMUS)
    )
    return ExperimentVerdict(_joined(wrong), (Chart("figure 8a", "load", "mean JCT, s", (), lines),))


def _load(folder: str) -> float:
    last = folder.rsplit("-", 1)[-1]
    return float(last) if last.replace(".", "").isdigit() else 1.0


def _intervals(means: Means, folders: Sequence[str]) -> ExperimentVerdict:
    (folder,) = folders
    by = {s: means[folder, f"pollux:interval={s},when=interval"] for s in (30, 60, 120, 240, 480)}
    wrong = []
    slower = fmean(by[120]) / fmean(by[30]) - 1.0
    if slower > 0.05:
        wrong.append(f"{slower:.1%} longer at 120 s than at 30 s")
    for shorter, longer in ((120, 240), (240, 480)):
        if interval([b - a for a, b in zip(by[shorter], by[longer], strict=True)])[1] <= 0.0:
            wrong.append(f"not longer at {longer} s")
    line = Line("pollux", tuple((float(s), fmean(ys)) for s, ys in by.items()))
    return ExperimentVerdict(_joined(wrong), (Chart("figure 8b", "interval, s", "mean JCT, s", (), (line,)),))


def _interference(means: Means, folders: Sequence[str]) -> ExperimentVerdict:
    (folder,) = folders

    def times(label: str) -> float:
        return fmean(means[folder, label]) / fmean(means[folder, f"{_GENETIC}, genetic, apart"])

    avoiding = times(f"{_GENETIC}, genetic, apart, 50% slower where shared")
    plain, crowded = (
        times(f"{_GENETIC}, genetic, crowded"),
        times(f"{_GENETIC}, genetic, crowded, 50% slower where shared"),
    )
    wrong = []
    if abs(avoiding - 1.0) > 0.02:
        wrong.append(f"avoiding, {avoiding:.2f} times at 50 %")
    if abs(plain - 1.0) > 0.05:
        wrong.append(f"not avoiding, {plain:.2f} times without a slowdown")
    if abs(crowded - 1.4) > 0.1:
        wrong.append(f"not avoiding, {crowded:.2f} times at 50 % instead of 1.4")
    theirs = (Line("paper, not avoiding", ((0.0, 1.0), (0.5, 1.4))), Line("paper, avoiding", ((0.0, 1.0), (0.5, 1.0))))
    ours = (Line("not avoiding", ((0.0, plain), (0.5, crowded))), Line("avoiding", ((0.0, 1.0), (0.5, avoiding))))
    return ExperimentVerdict(_joined(wrong), (Chart("figure 8c", "slowdown", "mean JCT, times", theirs, ours),))


_GENETIC = "pollux:when=interval"


def _testbed(means: Means, folders: Sequence[str]) -> ExperimentVerdict:
    tuned, realistic = folders
    ours = means[tuned, PLAIN]
    stated = {(tuned, OPTIMUS): 1.5, (tuned, TIRESIAS): 1.2, (realistic, OPTIMUS): 2.7, (realistic, TIRESIAS): 2.8}
    wrong = [
        near(
            f"below {label}{', realistic' if folder == realistic else ''}", below(ours, means[folder, label]), gain, 0.1
        )
        for (folder, label), gain in zip(stated, (0.50, 0.37, 0.72, 0.73), strict=True)
    ]
    labels = (PLAIN, *(f"{label}{', realistic' if folder == realistic else ''}" for folder, label in stated))
    theirs = Line("paper, testbed", tuple((float(n), y) for n, y in enumerate((0.76, *stated.values()))))
    found = (fmean(ours), *(fmean(means[key]) for key in stated))
    mine = Line("ours, simulated", tuple((float(n), y / HOUR) for n, y in enumerate(found)))
    return ExperimentVerdict(_joined(wrong), (Chart("table 2", "", "mean JCT, h", (theirs,), (mine,), "bars", labels),))


def _knob(means: Means, folders: Sequence[str]) -> ExperimentVerdict:
    (folder,) = folders
    labels = ("pollux:p=-1", "pollux:p=1", "pollux:p=-10")
    ours = means[folder, labels[0]]
    wrong, unclear = [], []
    for label in labels[1:]:
        low, high = interval([b - a for a, b in zip(ours, means[folder, label], strict=True)])
        if high < 0.0:
            wrong.append(f"{label} has a shorter JCT")
        elif low <= 0.0:
            unclear.append(label)
    verdict = _joined(wrong)
    if not wrong and unclear:
        verdict = cannot_be_told(f"p = −1 cannot be told apart from {', '.join(unclear)}")
    theirs = Line("paper, testbed", ((0.0, 0.76), (1.0, 0.83), (2.0, 0.84)))
    mine = Line("ours, simulated", tuple((float(n), fmean(means[folder, x]) / HOUR) for n, x in enumerate(labels)))
    return ExperimentVerdict(
        verdict, (Chart("table 2: fairness knob", "", "mean JCT, h", (theirs,), (mine,), "bars", labels),)
    )


PUBLIC_SIA: Mapping[str, float] = {"gavel.max-min": 2123.0, "pollux:types=off": 2972.0}
"""Mean JCT in seconds of Sia's public simulator on workload 6 at 10 jobs an hour."""


def kinds_verdict(found: Mapping[str, float]) -> str:
    """Return the verdict: these means on workload 6 at 10 jobs an hour are within 15 % of the public ones."""
    off = [
        f"{name} {found[name]:,.0f} s instead of {s:,.0f}"
        for name, s in PUBLIC_SIA.items()
        if abs(found[name] / s - 1) > 0.15
    ]
    return _joined(off)


JUDGES: Mapping[str, Judge] = {
    "pollux-jct": _jct,
    "pollux-8a": _loads,
    "pollux-8b": _intervals,
    "pollux-8c": _interference,
    "pollux-table2": _testbed,
    "pollux-p": _knob,
}
"""By experiment; those without a statement of the paper have none."""
