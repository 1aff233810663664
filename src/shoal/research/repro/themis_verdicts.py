"""Verdicts on Themis's simulated figures, from their figures by policy, mix, error, lie, filter and lease."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from shoal.report.compare import half_width
from shoal.research.repro.paired import PairedRatio, all_hold
from shoal.research.repro.table import REPRODUCES, cannot_be_told, differs

ERROR_CHANGE = 0.1076
"""Change of the worst ρ at errors of up to 20 % in the paper's figure 17."""


def by_mixes(
    rho: Mapping[float, float], at_all: Mapping[str, PairedRatio], gandiva_time: PairedRatio, themis: str
) -> str:
    """Return the verdict on figures 15 and 16: worst ρ by mix, the baselines' over Themis's, and Gandiva's GPU time."""
    worst = max(rho, key=lambda mix: rho[mix])
    claims = {f"the worst ρ is highest with a mix ({themis}: at {worst:.0%})": 0.0 < worst < 1.0}
    for name, ratio in at_all.items():
        claims[f"1.24 to 1.77 times at 100 % with {name} (ours {ratio})"] = ratio.high >= 1.24 and ratio.low <= 1.77
    inside = gandiva_time.low <= 1.081 <= gandiva_time.high
    claims[f"Gandiva's GPU time is 1.08 times at 100 % (ours {gandiva_time})"] = inside
    return all_hold(claims)


def by_errors(changes: Sequence[float]) -> str:
    """Return the verdict on figure 17: errors of up to 20 % change the worst ρ by no more than in the paper."""
    mean, half = fmean(changes), half_width(changes)
    if abs(mean) + half <= ERROR_CHANGE:
        return REPRODUCES
    if abs(mean) - half > ERROR_CHANGE:
        return differs(f"the worst ρ changes by {mean:+.1%} ± {half:.1%}, above {ERROR_CHANGE:.1%}")
    return cannot_be_told(f"{mean:+.1%} ± {half:.1%} has {ERROR_CHANGE:.1%} within it")


def by_lies(liar: Mapping[float, float], error: Mapping[float, float], others: Mapping[float, float]) -> str:
    """Return the verdict on figure 18: no lie pays; above 34 % the liar is much later (5 % or more), others sooner."""
    claims: dict[str, bool] = {}
    for lie, times in liar.items():
        if times * (1.0 + error[lie]) < 1.0:
            claims[f"no lie pays (the liar takes {times:.3f} times as long with {lie:.0%})"] = False
        if lie > 0.34:
            claims[f"the liar loses much with {lie:.0%} (ours {times:.3f} ± {error[lie]:.3f})"] = times >= 1.05
    mean = fmean(others.values())
    claims[f"the others are sooner (ours {mean:.3f})"] = mean < 1.0
    return all_hold(claims)


def by_filters(rho: Mapping[tuple[float, int], float]) -> str:
    """Return the verdict on figure 19a: ρ falls up to f = 0.8, is 1.5 times as high at 1; short leases are fairer."""
    rise = rho[1.0, 10] / rho[0.8, 10]
    return all_hold(
        {
            f"ρ falls up to f = 0.8 ({rho[0.0, 10]:.2f} to {rho[0.8, 10]:.2f})": rho[0.8, 10] < rho[0.0, 10],
            f"ρ at f = 1 is about 1.5 times that at 0.8 (ours {rise:.2f})": 1.25 <= rise <= 1.75,
            "shorter leases are fairer": rho[0.8, 5] < rho[0.8, 40],
        }
    )


def by_leases(gpu_time: Mapping[tuple[float, int], float]) -> str:
    """Return the verdict on figure 19b: GPU time rises with the filter and falls with longer leases."""
    return all_hold(
        {
            "GPU time rises with f": gpu_time[1.0, 10] > gpu_time[0.0, 10],
            "GPU time falls with longer leases": gpu_time[0.8, 40] < gpu_time[0.8, 5],
        }
    )
