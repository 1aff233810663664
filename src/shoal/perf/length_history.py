"""Lengths of jobs predicted from the runs that have ended: of this user, name, script, model, gang and kind.

``LengthHistory`` is a fold over ended jobs with bounded memory: for each of several keys, from the most specific
(user, name, model and gang) to all jobs, it keeps the lengths of the latest runs on a logarithmic scale. A prediction
mixes the keys' empirical distributions, each key leaving a part to the more general ones, and is conditioned on the
work that the job has done: only longer runs count. Its quantiles are calibrated by how earlier predictions turned out.
Whether a run completed, failed or was cancelled, its length is the work done until it ended, since a policy must know
when GPUs become free; runs that fail early no longer count for a job that has outlasted them.

Lengths are seconds of the job's requested gang on its best kind. Keys that name a model keep work, so that a run with
another gang or kind converts by the speeds of the two.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from math import log
from typing import TypeAlias
from weakref import ref

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.columns import Columns
from shoal.core.job import JobSpec
from shoal.core.units import JobNumber
from shoal.perf.length_keys import Key, in_work, keys_of, latest
from shoal.perf.length_predictions import ClassPrediction, Predictions, Weights
from shoal.perf.length_table import (
    BINS,
    COLUMNS,
    DRAWN,
    EDGES,
    PRIOR,
    WIDTH,
    Calibration,
    bin_of,
    conditional_spread,
    conditional_table,
    exceeding,
)

TRUST, SHRINKAGE = 0.6, 2.0
"""A key with n runs gets TRUST · n / (n + SHRINKAGE) of the weight that the more specific keys leave."""

MOST_KEYS = 20_000
"""Keys kept; the one that was added to longest ago is dropped."""

UNKNOWN_SCALE = 1000.0
"""Scale of a job of a model whose speed is not known: its lengths are compared with those of the model only."""

_RENEWED = 8
"""Predictions use a key's runs anew after each of this many parts of them has changed: tables cost more than runs."""

_SCORED, _SHOWN = 4, 128
"""One in this many predictions is scored, once there are some; the calibration is shown after this many."""

_MOST_DEFERRED = 8192
_LAST = float(EDGES[-2])
_SLOTS = 1024
"""Tables kept, beside those of the live jobs."""

KeyImage: TypeAlias = tuple[Key, int, bytes]
"""A key, the number of its runs ever, and the bins of the latest, each two bytes, the lowest first."""


@dataclass(frozen=True, slots=True)
class LengthImage:
    """All that predictions depend on: the keys, in the order in which they were last added to, and the calibration.

    ``quantiles`` and ``counts`` are those of ``Calibration``, first of jobs without runs of their own name or model.
    ``sources`` are the histories that were imported.
    """

    keys: tuple[KeyImage, ...] = ()
    quantiles: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(slots=True)
class _Runs:
    """The bins of the latest runs of a key; ``shown`` are those that predictions use, ``mass`` their distribution."""

    most: int
    count: int = 0
    bins: "array[int]" = field(default_factory=lambda: array("h"))
    due: int = 1
    shown: bytes = b""
    mass: Floats | None = None

    def add(self, bin: int) -> bool:
        """Add a run; return whether predictions change."""
        if len(self.bins) < self.most:
            self.bins.append(bin)
        else:
            self.bins[self.count % self.most] = bin
        self.count += 1
        if self.count < self.due:
            return False
        self.show()
        return True

    def show(self) -> None:
        """Let predictions use all runs."""
        self.due = self.count + max(1, len(self.bins) // _RENEWED)
        self.shown, self.mass = self.bins.tobytes(), None

    def distribution(self, shift: int) -> Floats:
        """Return the probability by bin, of lengths shorter by this many bins."""
        if shift:
            return _distribution(self.shown, shift)
        if self.mass is None:
            self.mass = _distribution(self.shown, 0)
        return self.mass

    def in_order(self) -> "array[int]":
        """Return the bins from the oldest run to the latest."""
        at = self.count % self.most if len(self.bins) == self.most else 0
        return self.bins[at:] + self.bins[:at]

    def copied(self) -> "_Runs":
        """Return an independent copy."""
        return _Runs(self.most, self.count, self.bins[:], self.due, self.shown, self.mass)


def _distribution(shown: bytes, shift: int) -> Floats:
    bins = np.frombuffer(shown, dtype=np.int16) - np.int16(shift)
    mass: Floats = np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS) / len(bins)
    return mass


class LengthHistory:
    """The fold: lengths of ended runs by key, and tables of predictions, made from them when they are asked for.

    Jobs with the same keys and scale are one *class*, known by its number. If ``speeds_known`` is false, the speeds
    of models are not known: the length of a job of a model is then compared with others of the model only.
    """

    def __init__(self, *, speeds_known: bool = True) -> None:
        self.speeds_known = speeds_known
        self.sources: tuple[str, ...] = ()
        self._runs: dict[Key, _Runs] = {}
        self._deferred: deque[tuple[JobSpec, float, float]] = deque(maxlen=_MOST_DEFERRED)
        """Runs that ended before any job without declared work was submitted."""
        self._calibration = (Calibration(), Calibration())  # of jobs without, and with, runs of their name or model
        self._scored = 0
        self._awaited: dict[JobNumber, tuple[int, Floats]] = {}
        """By live job whose prediction is to be scored: its group and distribution at submission."""
        self._members: list[tuple[tuple[Key, ...], int]] = []
        self._weights: list[Weights] = []
        """By class: the keys of which its table is made."""
        self._classes: dict[tuple[tuple[Key, ...], int], int] = {}
        self._classes_of: dict[Key, list[int]] = {}
        self._fresh: Flags = np.zeros(64, dtype=np.bool_)  # by class: whether its table is up to date
        self._slots: Indices = np.full(64, -1)  # by class: where its table is
        self._tables: Floats = np.zeros((0, BINS + 1, COLUMNS))
        self._beyond: Floats = np.zeros((0, BINS + 1))
        self._used = 0
        self._view: ref[Predictions] | None = None

    # ── the fold ──────────────────────────────────────────────────────────────────────────────────────────────

    def submitted(self, job: JobNumber, spec: JobSpec, speeds: Floats) -> tuple[int, float]:
        """Add a job and return its class and scale; ``speeds`` are its rates by kind. See ``place``."""
        number, scale = self.place(spec, speeds)
        if self._used > _SLOTS:
            self._drop_tables()
        if number >= 0 and (self._scored < 1000 or not job % _SCORED):
            slot = self._slot(number)
            if self._beyond[slot, 0] > 0:
                self._awaited[job] = self._group(number), self._beyond[slot].copy()
        return number, scale

    def place(self, spec: JobSpec, speeds: Floats, scale: float = 0.0) -> tuple[int, float]:
        """Return a job's class (−1 if it declares its work) and its ``scale``, which is computed if it is 0."""
        scale = scale or self.scale(spec, speeds)
        return (-1 if spec.work is not None else self._class_of(spec, scale)), scale

    def scale(self, spec: JobSpec, speeds: Floats) -> float:
        """Return a job's scale: the work that counts as one second of length; ``speeds`` are its rates by kind."""
        if spec.model and not self.speeds_known:
            return UNKNOWN_SCALE
        return max(speeds.tolist(), default=0.0) or 1.0

    def ended(self, job: JobNumber, spec: JobSpec, work: float, scale: float) -> None:
        """Add a run that did this much work until it ended; 0 if it never ran."""
        if work <= 0:
            self._awaited.pop(job, None)
            return
        if not self._members:  # nothing has been predicted yet
            self._deferred.append((spec, work, scale))
            return
        awaited = self._awaited.pop(job, None)
        self.secure()
        if awaited is not None:
            self._score(*awaited, work / scale)
        self.add(spec, work, scale)

    def add(self, spec: JobSpec, work: float, scale: float) -> None:
        """Add a run whose length was not predicted."""
        of_work, of_seconds = bin_of(work), bin_of(work / scale)
        for key in _keys(spec, scale):
            runs = self._runs.pop(key, None)
            if runs is None:
                if len(self._runs) >= MOST_KEYS:
                    self._runs.pop(next(iter(self._runs)))
                runs = _Runs(latest(key))
            self._runs[key] = runs
            if runs.add(of_work if in_work(key) else of_seconds) and key in self._classes_of:
                self._fresh[self._classes_of[key]] = False

    def _add_deferred(self) -> None:
        while self._deferred:
            self.add(*self._deferred.popleft())

    def _score(self, group: int, beyond: Floats, seconds: float) -> None:
        self._calibration[group].score(seconds, beyond)
        self._scored += 1
        if not self._scored % _SHOWN:
            self._show()

    def _show(self) -> None:
        for calibration in self._calibration:
            calibration.show()
        self._fresh[:] = False

    def _class_of(self, spec: JobSpec, scale: float) -> int:
        keys = _keys(spec, scale)
        member = keys, round(log(scale) / WIDTH) if spec.model else 0
        number = self._classes.get(member)
        if number is None:
            self._add_deferred()
            number = self._classes[member] = len(self._members)
            self._members.append(member)
            self._weights.append(())
            if number == len(self._fresh):
                self._fresh = np.concatenate([self._fresh, np.zeros_like(self._fresh)])
                self._slots = np.concatenate([self._slots, np.full_like(self._slots, -1)])
            for key in keys:
                self._classes_of.setdefault(key, []).append(number)
        return number

    # ── predictions ───────────────────────────────────────────────────────────────────────────────────────────

    def view(self, columns: Columns) -> Predictions | None:
        """Return the predictions for these jobs as of now; lengths that are added later do not change them.

        None as long as every job that was submitted declares its work.
        """
        if not self._members:
            return None
        self.secure()
        view = Predictions(self, columns)
        self._view = ref(view)
        return view

    def secure(self) -> None:
        """Prepare for a change: if the last view is still in use, let it compute its predictions."""
        view = self._view() if self._view is not None else None
        if view is not None:
            view.left  # noqa: B018
        self._view = None

    def totals(self, classes: Int32s, seconds: Floats) -> Floats:
        """Return total lengths in seconds of jobs of these classes that have run ``seconds``: ``PARTS``, then mean."""
        fresh = self._fresh.take(classes)
        if not fresh.all():
            stale = np.unique(classes[~fresh]).tolist()
            if self._used + len(stale) > max(len(self._tables), _SLOTS):  # some may be in place, but not all others
                self._drop_tables()
                stale = np.unique(classes).tolist()
            for number in stale:
                self._slot(number)
        place = np.log(np.minimum(np.maximum(seconds, 1.0), _LAST))
        place *= 1.0 / WIDTH
        low = place.astype(np.intp)
        place -= low
        low += self._slots.take(classes) * (BINS + 1)
        tables = self._tables.reshape(-1, COLUMNS)
        below, totals = tables.take(low, axis=0), tables.take(low + 1, axis=0)
        totals -= below
        totals *= place[:, None]
        totals += below
        return totals

    def spread(self, number: int, scale: float, done: float) -> Floats:
        """Return a job's total work at the probabilities ``DRAWN``, given the work done; NaN without any history."""
        slot = self._slot(number)
        if not self._weights[number]:
            return np.full(len(DRAWN), np.nan)
        parts = self._calibration[self._group(number)].shown
        return conditional_spread(self._beyond[slot], parts, done / scale) * scale

    def prediction(self, number: int) -> ClassPrediction | None:
        """Return the prediction for the jobs of a class, which later events do not change; None without one."""
        slot, weights = self._slot(number), self._weights[number]
        return ClassPrediction(self._tables[slot].copy(), weights, self._members[number][1]) if weights else None

    def _weigh(self, number: int) -> list[tuple[Key, _Runs, float]]:
        """Return the keys of a class that have runs, the most specific first, with their weights."""
        found, rest = [], 1.0
        for key in self._members[number][0]:
            runs = self._runs.get(key)
            if runs is not None and runs.shown:
                count = len(runs.shown) // 2
                part = TRUST * count / (count + SHRINKAGE)
                found.append((key, runs, rest * part))
                rest *= 1.0 - part
        return found

    def _group(self, number: int) -> int:
        """Return which calibration a class with an up-to-date table has: 1 if its first key with runs keeps work."""
        weights = self._weights[number]
        return int(bool(weights) and in_work(weights[0][0]))

    def _slot(self, number: int) -> int:
        """Bring the table of a class up to date and return its place."""
        slot = self._slots.item(number)
        if self._fresh[number]:
            return slot
        if slot < 0:
            if self._used == len(self._tables):
                more = max(8, len(self._tables))
                self._tables = np.concatenate([self._tables, np.zeros((more, BINS + 1, COLUMNS))])
                self._beyond = np.concatenate([self._beyond, np.zeros((more, BINS + 1))])
            slot = self._slots[number] = self._used
            self._used += 1
        weights, shift = self._weigh(number), self._members[number][1]
        self._weights[number] = tuple((key, runs.shown, weight) for key, runs, weight in weights)
        self._fresh[number] = True
        if not weights:
            self._tables[slot], self._beyond[slot] = np.nan, 0.0
            return slot
        mass = (1.0 - sum(weight for _, _, weight in weights)) * PRIOR
        for key, runs, weight in weights:
            mass += weight * runs.distribution(shift if in_work(key) else 0)
        beyond = self._beyond[slot] = exceeding(mass)
        parts = self._calibration[self._group(number)].shown
        self._tables[slot] = conditional_table(mass, beyond, parts)
        return slot

    def _drop_tables(self) -> None:
        self._fresh, self._slots = np.zeros_like(self._fresh), np.full_like(self._slots, -1)
        self._tables, self._beyond, self._used = np.zeros((0, BINS + 1, COLUMNS)), np.zeros((0, BINS + 1)), 0

    # ── copies ────────────────────────────────────────────────────────────────────────────────────────────────

    def image(self) -> LengthImage:
        """Return the image of this history; predictions that are not scored yet are not in it."""
        self._add_deferred()
        both = self._calibration
        return LengthImage(
            tuple((key, runs.count, runs.bins.tobytes()) for key, runs in self._runs.items()),
            tuple(q for one in both for q in one.tracked.ravel().tolist()),
            tuple(n for one in both for n in one.counts.tolist()),
            self.sources,
        )

    def restored(self, image: LengthImage) -> "LengthHistory":
        """Return a history like this one with the runs of an image; predictions use all of them."""
        history = LengthHistory(speeds_known=self.speeds_known)
        history.sources = image.sources
        history.merge(image.keys)
        if image.quantiles:
            quantiles, counts = np.array(image.quantiles), np.array(image.counts)
            for one, own, seen in zip(history._calibration, np.split(quantiles, 2), np.split(counts, 2), strict=True):
                one.tracked[:], one.counts[:] = own.reshape(one.tracked.shape), seen
            history._scored = int(max(one.counts[0] for one in history._calibration))
            history._show()
        return history

    def merge(self, keys: Iterable[KeyImage]) -> None:
        """Add the runs of another history's keys before this one's own, as older ones."""
        self.secure()
        self._add_deferred()
        newer = self._runs
        self._runs = {}
        for key, count, bins in keys:
            self._runs[tuple(key)] = _Runs(latest(tuple(key)), count, array("h", bins))
        for key, later in newer.items():
            runs = self._runs[key] = self._runs.pop(key, _Runs(latest(key)))
            for bin in later.in_order():
                runs.add(bin)
        for runs in self._runs.values():
            runs.show()
        self._fresh[:] = False

    def __deepcopy__(self, memo: object) -> "LengthHistory":
        other = copy(self)
        other._runs = {key: runs.copied() for key, runs in self._runs.items()}
        other._calibration = (self._calibration[0].copied(), self._calibration[1].copied())
        other._deferred = self._deferred.copy()
        other._awaited, other._members, other._classes = dict(self._awaited), list(self._members), dict(self._classes)
        other._weights = list(self._weights)
        other._classes_of = {key: list(numbers) for key, numbers in self._classes_of.items()}
        other._view = None
        other._drop_tables()
        return other


def _keys(spec: JobSpec, scale: float) -> tuple[Key, ...]:
    user = spec.user or spec.tenant
    found = keys_of(user, spec.name, spec.script, spec.model or "", spec.gpus, spec.kinds or ())
    return tuple(filter(in_work, found)) if scale == UNKNOWN_SCALE else found
