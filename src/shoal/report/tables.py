"""The figures of a comparison as text, and the comparison as a table for the terminal."""

from typing import TYPE_CHECKING

from shoal.report.compare import NO_DIFFERENCE, NOT_SIGNIFICANT, Comparison, Difference, Measure

if TYPE_CHECKING:
    from rich.table import Table

_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_POINTS = "%"


def unit_of(comparison: Comparison, measure: Measure) -> tuple[str, float]:
    """Return the unit of a measure's column, and its size in the stored unit."""
    if measure.unit == _POINTS:
        return "%", 0.01
    if measure.unit != "h":
        return measure.unit if measure.unit == "$" else "", 1.0
    means = [mean for standing in comparison.standings if (mean := standing.means[measure.name]) is not None]
    smallest = min(means, default=0.0)
    return next((unit for unit in _UNITS if smallest >= 0.5 * unit[1]), _UNITS[-1])


def heading(comparison: Comparison, measure: Measure) -> str:
    """A column's heading with its unit, for example ``average JCT (h)``."""
    unit = unit_of(comparison, measure)[0]
    return f"{measure.title} ({unit})" if unit else measure.title


def figure(comparison: Comparison, measure: Measure, value: float | None) -> str:
    """A value in its column's unit, without the unit; a dash where there is none."""
    if value is None:
        return "–"
    shown = value / unit_of(comparison, measure)[1]
    if measure.unit in ("n", "$"):
        return f"{shown:,.0f}"
    return f"{shown:.1f}" if measure.unit == _POINTS else f"{shown:,.2f}"


def change(comparison: Comparison, measure: Measure, difference: Difference | None) -> tuple[str, ...]:
    """Return a difference as lines: the change against the baseline, or that it is not significant, and its interval.

    Changes are relative, except that shares (utilization, jobs above a ρ) change by percentage points.
    """
    if difference is None:
        return ()
    if difference.verdict == NO_DIFFERENCE:
        return (NO_DIFFERENCE,)
    base = next(s.means[measure.name] for s in comparison.standings if s.policy == comparison.baseline)
    points = measure.unit == _POINTS
    if not points and not base:
        return ()
    scale, unit = (0.01, " pp") if points else ((base or 1.0) / 100, " %")
    significant = difference.verdict != NOT_SIGNIFICANT
    lines = [f"{difference.value / scale:+.1f}{unit}" if significant else NOT_SIGNIFICANT]
    if difference.low is not None and difference.high is not None:
        lines.append(f"({difference.low / scale:+.1f} to {difference.high / scale:+.1f}{'' if significant else unit})")
    return tuple(line.replace("-", "−") for line in lines)


def basis(comparison: Comparison) -> str:
    """A sentence on the intervals: their confidence, and what was paired."""
    found = {d.basis: d.pairs for d in comparison.differences}
    if "seeds" in found:
        over = f"t-intervals over {found['seeds']} paired seeds"
    elif "jobs" in found:
        over = f"bootstrap intervals over {found['jobs']:,} paired jobs of one seed; figures without one are of one run"
    elif found:
        return f"Changes are against {comparison.baseline}, of one run each: there is no interval for them."
    else:
        return ""
    return f"Changes are against {comparison.baseline}, with 95 % {over}."


def table(comparison: Comparison) -> "Table":
    """The comparison as a table to print: a column for each policy; the significantly best figure of a row is bold."""
    from rich.table import Table
    from rich.text import Text

    where = " on ".join(filter(None, (comparison.workload, comparison.cluster)))
    printed = Table(title=where or None, caption=basis(comparison) or None)
    printed.add_column("")
    for standing in comparison.standings:
        printed.add_column(Text(standing.policy), justify="right")
    printed.add_row("jobs completed", *(f"{s.completed:,g} of {s.jobs:,g}" for s in comparison.standings))
    for measure in comparison.measures():
        cells = []
        for standing in comparison.standings:
            top = comparison.best.get(measure.name) == standing.policy
            cell = Text(figure(comparison, measure, standing.means[measure.name]), style="bold green" if top else "")
            for line in change(comparison, measure, comparison.difference(standing.policy, measure.name)):
                cell.append(f"\n{line}", style="dim not bold")
            cells.append(cell)
        printed.add_row(Text(heading(comparison, measure)), *cells)
    return printed
