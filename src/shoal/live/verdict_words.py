"""A verdict's reason as a sentence of a live cluster: clock times, readable durations, and the nodes that are down."""

from math import isfinite

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.reasons import IN_TURN, LEASED, OUTRANKED, TOO_LARGE, Reason
from shoal.core.topology import Topology
from shoal.core.units import figure, span
from shoal.live.time_words import ClockWords

_GPU_UNITS = (("GPU-hours", 3600.0), ("GPU-minutes", 60.0), ("GPU-seconds", 1.0))


def verdict_sentence(reason: Reason, cluster: Topology, speeds: Floats, words: ClockWords) -> str:
    """Return the sentence of a reason of a job with these ``speeds`` by kind, decided on for this cluster."""
    template = reason.template
    if template == LEASED and words.now is not None and float(reason.numbers[0]) <= words.now:
        return f"keeps its GPUs: its lease ended at {words.at(float(reason.numbers[0]))} and no job has taken them"
    if template in (IN_TURN, OUTRANKED):
        return _ranked(reason, words)
    if template == TOO_LARGE:
        needed, usable = int(float(reason.numbers[0])), np.flatnonzero(speeds > 0).tolist()
        most = max((cluster.installed[kind] for kind in usable), default=0)
        if needed <= most:
            one_kind = " of one kind" if needed > 1 else ""
            can_be_used = int(float(reason.numbers[1]))
            gpus = "1 GPU" if needed == 1 else f"{needed} GPUs"
            return f"waits for nodes: needs {gpus}{one_kind}; {can_be_used} of {most} can be used now"
    return reason.sentence(words)


def _ranked(reason: Reason, words: ClockWords) -> str:
    """Return the sentence on a job's place in an order, seconds and GPU-seconds in readable units."""
    name, value, last = reason.numbers
    what, _, unit = str(name).rpartition(" in ")
    if unit not in ("seconds", "GPU-seconds"):
        return reason.sentence(words)
    in_words = span if unit == "seconds" else _gpu_time
    its = in_words(float(value)) if isfinite(float(value)) else "unknown"
    before = f"jobs with up to {in_words(float(last))} go first" if isfinite(float(last)) else "jobs before it go first"
    if reason.template == IN_TURN:
        return f"runs: its {what} is {its}, and {before}"
    return f"waits: its {what} is {its}; {before} and take the GPUs"


def _gpu_time(seconds: float) -> str:
    name, unit = next((one for one in _GPU_UNITS if seconds >= 2 * one[1]), _GPU_UNITS[-1])
    return f"{figure(seconds / unit)} {name}"
