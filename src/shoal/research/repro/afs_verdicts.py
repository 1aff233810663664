"""Verdicts on AFS's figures of ratios by trace: the paper's statements on each, checked on our ratios.

Every function takes the ratios of a figure's rows, by their names, one for each trace.
"""

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import TypeAlias

from shoal.research.repro.paired import all_hold

Ratios: TypeAlias = Mapping[str, Sequence[float]]

_SLACK = 0.1
"""Fraction by which a ratio may lie outside the paper's range, whose ends have two digits."""

_FIGURE_6 = {"srtf": 4.85, "srsf": 5.84, "tiresias": 16.14}


def best_of_their_kinds(ratios: Ratios) -> str:
    """Return the verdict on figure 5: AFS-L 1.2 to 2.7 times better than SRTF, AFS-P 1.9 to 3.1 than Tiresias-L."""
    claims: dict[str, bool] = {}
    for base, ours, low, high in (("srtf", "afs-l", 1.2, 2.7), ("tiresias", "afs-p", 1.9, 3.1)):
        row = ratios[f"{base} / {ours}"]
        inside = min(row) >= low * (1.0 - _SLACK) and max(row) <= high * (1.0 + _SLACK)
        claims[f"{ours} is {low} to {high} times better than {base} (ours {min(row):.2f} to {max(row):.2f})"] = inside
        rivals = [name for name in ratios if name.startswith(f"{base} / ") and not name.endswith(("afs-l", "rank"))]
        ahead = {
            name.partition(" / ")[2]
            for name in rivals
            if name != f"{base} / {ours}" and any(a > b for a, b in zip(ratios[name], row, strict=True))
        }
        # A policy that runs on some of the jobs has a row beside ours on the same jobs.
        beside = [name for name in ratios if name.partition(" / ")[2].startswith(f"{ours} (")]
        ahead |= {name.partition(" ")[0] for name in beside if min(ratios[name]) < 1.0}
        claims[f"{ours} is the best on every trace ({', '.join(sorted(ahead))} ahead somewhere)"] = not ahead
    return all_hold(claims)


def wide_gangs(ratios: Ratios) -> str:
    """Return the verdict on figure 6: blow-ups of at most 4.85, 5.84 and 16.14; SRTF and SRSF shorter on one trace."""
    claims: dict[str, bool] = {}
    for policy, theirs in _FIGURE_6.items():
        row = ratios[f"{policy} (widest) / {policy}"]
        claims[f"{policy} is up to {theirs} times longer (ours {max(row):.2f})"] = 0.8 <= max(row) / theirs <= 1.25
        if policy != "tiresias":
            shorter = sum(ratio < 1.0 for ratio in row)
            claims[f"{policy} is shorter on one trace (ours {shorter})"] = shorter == 1
    return all_hold(claims)


def tails(ratios: Ratios) -> str:
    """Return the verdict on figure 9: AFS's tails are shorter on most traces; Max-Min or Optimus is ahead on some."""
    claims: dict[str, bool] = {}
    for base, ours in (("srtf", "afs-l"), ("tiresias", "afs-p")):
        row = ratios[f"{base} / {ours}"]
        better = sum(ratio > 1.0 for ratio in row)
        claims[f"{ours} is shorter than {base} on most traces ({better} of {len(row)})"] = 2 * better > len(row)
    row = ratios["tiresias / afs-p"]
    ahead = [any(ratios[f"tiresias / {name}"][i] > row[i] for name in ("max-min", "optimus")) for i in range(len(row))]
    claims["max-min or optimus is ahead on some traces"] = any(ahead)
    return all_hold(claims)


def altruism(ratios: Ratios) -> str:
    """Return the verdict on figure 11: SRTF-E and SRSF-E are better than SRTF, AFS-L better than both."""
    mean = {name: _mean(row) for name, row in ratios.items()}
    ours = mean["srtf / afs-l"]
    claims = {f"{name} is above 1 (ours {value:.2f})": value > 1.0 for name, value in mean.items()}
    others = max(value for name, value in mean.items() if name != "srtf / afs-l")
    claims[f"afs-l is better than both (ours {ours:.2f} and {others:.2f})"] = ours > others
    return all_hold(claims)


def unknown_lengths(ratios: Ratios) -> str:
    """Return the verdict on figure 13: AFS-P takes at most about twice as long as AFS-L, AFS-S as long as AFS-P."""
    known, simple = ratios["afs-p / afs-l"], ratios["afs-s / afs-l"]
    similar = sum(abs(a / b - 1.0) <= _SLACK for a, b in zip(simple, known, strict=True))
    return all_hold(
        {
            f"afs-p is at most twice as long (ours {max(known):.2f})": max(known) <= 2.0 * (1.0 + _SLACK),
            f"afs-s is similar to afs-p on most traces ({similar} of {len(known)})": 2 * similar > len(known),
        }
    )


def _mean(row: Sequence[float]) -> float:
    return exp(fmean(map(log, row)))


VERDICTS: Mapping[str, Callable[[Ratios], str]] = {
    "5": best_of_their_kinds,
    "6": wide_gangs,
    "9": tails,
    "11": altruism,
    "13": unknown_lengths,
}
"""By number of the figure."""
