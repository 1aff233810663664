"""Predictions from a history of lengths at one moment: for all live jobs as columns, and for one job later on."""

from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.columns import Columns, sealed
from shoal.core.lengths import JobLength, PredictedWork, nothing_predicted
from shoal.core.units import JobNumber
from shoal.perf.length_keys import Key, in_words, in_work
from shoal.perf.length_table import BINS, COLUMNS, PRIOR, WIDTH

if TYPE_CHECKING:
    from shoal.perf.length_history import LengthHistory


Weights: TypeAlias = tuple[tuple[Key, bytes, float], ...]
"""The keys of a class that have runs, the most specific first: the bins of their latest runs, and their weight."""


@dataclass(frozen=True, slots=True)
class ClassPrediction:
    """The table of a class and the keys it is made of; ``shift`` is that of the bins of keys that keep work."""

    table: Floats
    keys: Weights
    shift: int

    def given(self, done: float, scale: float) -> JobLength:
        """Return the predicted work left of a job once this much is done."""
        seconds = done / scale
        place = min(log(max(seconds, 1.0)) / WIDTH, BINS - 1.0)
        low = int(place)
        totals = self.table[low] + (self.table[low + 1] - self.table[low]) * (place - low)
        left = [max(float(total) - seconds, 1.0) * scale for total in totals]
        prior = 1.0 - sum(weight for _, _, weight in self.keys)
        best, runs, of = prior * float(PRIOR[low:].sum()), 0, ""
        for key, shown, weight in self.keys:
            bins = np.frombuffer(shown, dtype=np.int16)
            longer = (
                int(np.count_nonzero(bins - (self.shift if in_work(key) else 0) >= place))
                if seconds > 1.0
                else len(bins)
            )
            if weight * longer / len(bins) > best:
                best, runs, of = weight * longer / len(bins), longer, in_words(key)
        return JobLength(left[0], left[1], left[2], runs, of)


class Predictions:
    """The predictions for the live jobs at one moment; implements ``core.lengths.LengthView``."""

    def __init__(self, history: "LengthHistory", columns: Columns) -> None:
        self._history = history
        self._columns = columns
        self._kept: dict[int, ClassPrediction | None] | None = None

    @property
    def rows(self) -> Indices:
        """The admission numbers, ascending."""
        return self._columns.rows

    @cached_property
    def left(self) -> PredictedWork:
        """The work left of each job that declares none."""
        columns, classes = self._columns, self._columns.length_class
        at = None if len(classes) and classes.min() >= 0 else np.flatnonzero(classes >= 0)
        if at is not None and not len(at):
            return nothing_predicted(len(columns))
        scale, done = columns.length_scale, columns.done
        if at is not None:
            classes, scale, done = classes[at], scale[at], done[at]
        seconds = done / scale
        left = self._history.totals(classes, seconds).T - seconds
        np.maximum(left, 1.0, out=left)
        left *= scale
        if at is not None:
            some, left = left, np.full((COLUMNS, len(columns)), np.nan)
            left[:, at] = some
        low, median, high, mean = sealed(left)
        return PredictedWork(mean, low, median, high)

    def keep(self) -> None:
        """Prepare ``given`` for calls from other threads, and after later events."""
        self.left  # noqa: B018
        classes = np.unique(self._columns.length_class).tolist()
        self._kept = {number: self._history.prediction(number) for number in classes if number >= 0}

    def given(self, job: JobNumber, done: float) -> JobLength | None:
        """Return the predicted work left of a job once this much is done; None where nothing is predicted."""
        at = int(np.searchsorted(self.rows, job))
        number = int(self._columns.length_class[at]) if at < len(self.rows) and self.rows[at] == job else -1
        if number < 0:
            return None
        found = self._history.prediction(number) if self._kept is None else self._kept[number]
        return None if found is None else found.given(done, float(self._columns.length_scale[at]))
