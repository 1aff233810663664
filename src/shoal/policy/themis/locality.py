"""Slowdown of jobs by the distance between their GPUs: four levels, guessed at first and then measured.

References: Themis (NSDI '20) §4.3.1, footnote 3, for the first guesses, and §6.1 for the four levels.
"""

from collections.abc import Iterable
from typing import TypeAlias

from shoal.core.snapshot import Measurement
from shoal.core.topology import Locality
from shoal.policy.themis.protocol import Level

Slowdown: TypeAlias = tuple[float, float, float, float]
"""By level: how many times longer an iteration takes than with GPUs on one machine."""

GUESSED: Slowdown = (1.0, 1.0, 1.1, 1.3)


def level_of(gpus: int, locality: Locality) -> Level:
    """The level of this many GPUs at this distance."""
    return Level.SLOT if gpus == 1 else Level(locality + 1)


def learned(slowdown: Slowdown, measured: Iterable[tuple[Measurement, float, Level]]) -> Slowdown:
    """The slowdowns after these measurements, the oldest first, each with the expected rate and its level.

    A measurement at the expected level says nothing about distance. No level is faster than a nearer one.
    """
    known = list(slowdown)
    for seen, expected, at in measured:
        level = level_of(seen.gpus, seen.locality)
        if level > at and seen.rate > 0 and expected > 0:
            known[level] = known[at] * expected / seen.rate
    known[Level.RACK] = max(known[Level.RACK], 1.0)
    known[Level.CLUSTER] = max(known[Level.CLUSTER], known[Level.RACK])
    return known[0], known[1], known[2], known[3]
