"""What Shockwave carries from one decision to the next: the plan in force, each job's outlook, how crowded it was."""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.units import Seconds


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """A window of rounds: by admission number (``rows``) who runs when, on which kind, and who is filled in first.

    ``batches`` and ``capacity`` are those it was made for; ``gap`` is the solver's, the worst of any kind of GPU.
    """

    begins: Seconds
    rows: Indices
    runs: Flags
    kinds: Int8s
    rank: Indices
    batches: Int32s
    capacity: tuple[int, ...]
    gap: float

    @property
    def rounds(self) -> int:
        """Rounds in the window."""
        return int(self.runs.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Outlooks:
    """By admission number: what each job has before it, as long as its progress, batch size and speeds are these.

    ``seconds`` is the predicted run time left and ``optimistic`` that at its fastest known rate, both with the
    requested gang; ``whole`` is all its work, done and to do; ``gained[n]`` what n more rounds would do of it.
    """

    rows: Indices
    done: Floats
    batches: Int32s
    measured: Int32s
    seconds: Floats
    optimistic: Floats
    whole: Floats
    gained: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ShockwaveCarry:
    """When the round in force ends, the plan in force, and the one made ahead for the next round, if any.

    ``crowd`` has, for each of ``rows``, the most jobs that were live at once since it came.
    """

    ends: Seconds
    rows: Indices
    crowd: Int32s
    outlooks: Outlooks | None = None
    plan: WindowPlan | None = None
    coming: WindowPlan | None = None


def places(rows: Indices, wanted: Indices) -> tuple[Indices, Flags]:
    """Where each wanted number stands among sorted rows, and whether it does."""
    if not len(rows):
        return np.zeros(len(wanted), dtype=np.intp), np.zeros(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    return at, rows[at] == wanted
