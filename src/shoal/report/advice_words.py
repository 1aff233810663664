"""Sentences of an advice: changes by policies, accuracy of the baseline, and GPU-hours wasted in the record."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.units import UNITS, unit_of
from shoal.report.advice import Advice, FigureInterval

UNIT_SECONDS = dict(UNITS)


def time_unit(values: Sequence[float]) -> str:
    """Return the readable unit for several times in seconds: that of the largest."""
    return unit_of(max(map(abs, values), default=0.0))[0]


def in_unit(seconds: float, unit: str, *, signed: bool = False) -> str:
    """A time as a number in a unit, without the unit."""
    value = seconds / UNIT_SECONDS[unit]
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 or unit == "s" else 2
    return f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "−")


def time_text(seconds: float) -> str:
    """A time with its unit, e.g. ``3.5 h``."""
    unit = time_unit([seconds])
    return f"{in_unit(seconds, unit)} {unit}"


def change_text(change: FigureInterval, unit: str | None = None) -> str:
    """A difference of times with its interval, e.g. ``−1.2 h (−1.9 to −0.5)``; a ratio where the unit is ``×``."""
    if unit == "×":
        values = [f"{v:+.2f}".replace("-", "−") for v in (change.value, change.low, change.high) if v is not None]
        return values[0] + (f" ({values[1]} to {values[2]})" if len(values) == 3 else "")
    unit = unit or time_unit([change.value, change.low or 0.0, change.high or 0.0])
    text = f"{in_unit(change.value, unit, signed=True)} {unit}"
    if change.low is None or change.high is None:
        return text
    return f"{text} ({in_unit(change.low, unit, signed=True)} to {in_unit(change.high, unit, signed=True)})"


def finding_sentences(advice: Advice) -> list[str]:
    """Sentences on the changes by policies, and on how far the simulated baseline is from the record."""
    return [_record(advice), _changes(advice), _distance(advice)]


def _changes(advice: Advice) -> str:
    measure, base = "mean_jct", advice.baseline
    better = [r for r in advice.policies if (c := r.versus_baseline[measure]).excludes_zero and c.value < 0.0]
    worse = [r for r in advice.policies if (c := r.versus_baseline[measure]).excludes_zero and c.value > 0.0]
    parts = []
    if better:
        ranked = sorted(better, key=lambda row: row.versus_baseline[measure].value)
        most = change_text(ranked[0].versus_baseline[measure])
        text = f"Simulated mean completion times are lower than under {base} with {', '.join(r.name for r in ranked)}"
        if len(ranked) == 1:
            text += f": {most}"
        else:
            text += f", by the most with {ranked[0].name}: {most}"
            text += "" if measure in advice.best else "; intervals overlap, so none is marked as best"
        parts.append(text)
    else:
        parts.append(f"No policy has a significantly lower simulated mean completion time than {base}")
    if worse:
        parts.append(f"higher with {', '.join(row.name for row in worse)}")
    return "; ".join(parts) + "."


def _record(advice: Advice) -> str:
    figures = advice.record.figures
    return (
        f"Recorded: mean completion time {time_text(figures['mean_jct'].value)}, mean wait "
        f"{time_text(figures['mean_wait'].value)}, 95th percentile of the wait {time_text(figures['tail_wait'].value)}."
    )


def _distance(advice: Advice) -> str:
    found = advice.calibration
    recorded, simulated = found["recorded_mean_wait"], found["simulated_mean_wait"]
    text = (
        f"Calibration: the simulated {advice.baseline} has a mean wait of {time_text(simulated)} where "
        f"{time_text(recorded)} was recorded (medians {time_text(found['simulated_median_wait'])} and "
        f"{time_text(found['recorded_median_wait'])}), and starts {found['started_within_10_min']:.0%} of the jobs "
        "within 10 min of their recorded start"
    )
    if found["rank_correlation"] is not None:
        text += f"; rank correlation of waits {found['rank_correlation']:.2f}"
    if max(recorded, simulated) > 600.0 and not 0.5 <= (recorded + 60.0) / (simulated + 60.0) <= 2.0:
        text += (
            ". They differ by more than a factor of two: compare the policies with the simulated baseline, not with "
            "the record, and look for limits, reservations or a wrong cluster (--cluster)"
        )
    return text + "."


def waste_sentences(waste: Mapping[str, Any]) -> list[str]:
    """Idle, over-asked and wrong-kind GPU-hours of the record."""
    total = waste["gpu_hours"] or 1.0
    sentences = [
        f"Recorded over {waste['days']:.1f} days: of {waste['gpu_hours']:,.0f} GPU-hours {waste['used'] / total:.0%} "
        f"were allocated and {waste['idle'] / total:.0%} idle; {waste['idle_while_waiting']:,.0f} idle GPU-hours "
        f"({waste['idle_while_waiting'] / total:.1%}) while jobs waited that could have used that kind."
    ]
    if len(waste["kinds"]) > 1:
        sentences.append(
            f"Wrong kind: {waste['wrong_kind']:,.0f} GPU-hours ({waste['wrong_kind'] / total:.1%}) were idle while "
            "jobs waited that had asked for another kind; this is an upper bound, since a gang may not have fitted."
        )
    if waste["jobs_with_limit"]:
        share = waste["over_asked_time"] / (waste["asked_time"] or 1.0)
        sentences.append(
            f"Over-asked time: {share:.0%} of the GPU-hours in time limits were not run "
            f"({waste['over_asked_time']:,.0f} of {waste['asked_time']:,.0f}); the median limit is "
            f"{waste['limit_over_run_median']:.1f} times the run time."
        )
    if waste["measured_gpu_hours"]:
        share = waste["unused_gpu"] / waste["measured_gpu_hours"]
        sentences.append(
            f"Over-asked GPUs: in jobs with recorded GPU utilization, {share:.0%} of "
            f"{waste['measured_gpu_hours']:,.0f} allocated GPU-hours were unused."
        )
    else:
        sentences.append("The file records no GPU utilization, so GPUs allocated but unused are not known.")
    return sentences
