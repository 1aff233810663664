"""What two jobs keep when they share GPUs, where only some pairs were tried: Gavel's throughput estimator.

A new job is run for a moment beside a few reference jobs. Matrix completion turns these few figures into a whole row,
its *fingerprint*: what it would keep beside every reference, and what they would keep beside it. The reference with
the nearest row is taken for its likeness. Of two jobs never seen together, each is expected to treat the other as it
would treat the other's likeness, and the two opinions are averaged. What is seen of a pair later overrides that.

Everything here is a pure function of its inputs and its seed. An estimate is a fraction of the rate alone within
[0, 1]; as in the catalogue, one fraction holds for every kind of GPU, and jobs on several GPUs are taken to take turns.

References: Gavel (OSDI '20) §3.3, §6 and figure 16; Quasar (ASPLOS '14) for fingerprints by matrix completion.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Estimate, JobView, Snapshot
from shoal.core.topology import Placement, Topology
from shoal.perf.catalog import TIME_SLICED, Catalog, TypeKey
from shoal.perf.matrix_completion import complete
from shoal.perf.model import ProfiledModel

RANK, RIDGE = 2, 0.3
"""For fractions of 0 to 1 between some 25 types: a held-out error of 0.147 on the catalogue, against 0.184 at rank 0,
0.167 at rank 1, 0.159 at rank 3 and 0.149 at rank 4; from a tenth to three times the ridge it moves by 0.002."""

_UNFIT = (0.0, 0.0)

_MOST_FINGERPRINTS = 4096
"""Fingerprints remembered; there is one for each state of knowledge about each type."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A job seen against the references: what it keeps beside each, what each keeps beside it, nearest rows first.

    ``nearness`` holds positions in ``references``; equal distances keep the order of the references.
    """

    references: Indices
    kept: Floats
    left: Floats
    distance: Floats
    nearness: Indices


@dataclass(frozen=True)
class Estimator:
    """Estimates by type, as indices into square matrices in which NaN stands for what is not known.

    A job's own row and column of the library are never looked at to tell its fingerprint, nor is what the library says
    of two types ever looked at to tell what these two keep. Each of the two does serve among the other's references.

    ``library[i, j]`` is what type i keeps beside type j where both serve as references; ``known[i, j]`` what was seen
    of them as the jobs in question. Types of one ``family`` never serve as references for one another: with every type
    a family of its own, a job is judged without its own type; with families of models, without its whole model.
    """

    library: Floats
    known: Floats
    families: Indices
    _fingerprints: dict[tuple[int, bytes], Fingerprint] = field(default_factory=dict, repr=False, compare=False)

    def knowing(self, known: Floats) -> "Estimator":
        """The same references with other knowledge of the jobs in question."""
        return Estimator(self.library, known, self.families, self._fingerprints)

    def pair(self, a: int, b: int) -> tuple[float, float]:
        """What a and b keep beside each other: as seen if it was, else estimated without a look at either's family.

        Swapping the two swaps the answer. With no reference left to compare with, they are taken to take turns.
        """
        if not np.isnan(self.known[a, b] + self.known[b, a]):
            return float(self.known[a, b]), float(self.known[b, a])
        one, other = self.fingerprint(a), self.fingerprint(b)
        like_a, like_b = self._likeness(one, b), self._likeness(other, a)
        if like_a is None or like_b is None:
            return TIME_SLICED
        at_b, at_a = int(np.searchsorted(one.references, like_b)), int(np.searchsorted(other.references, like_a))
        return (
            float(one.kept[at_b] + other.left[at_a]) / 2.0,
            float(one.left[at_b] + other.kept[at_a]) / 2.0,
        )

    def likeness(self, a: int) -> int | None:
        """The reference whose completed row is nearest; None if there are no references."""
        return self._likeness(self.fingerprint(a), a)

    def _likeness(self, of: Fingerprint, partner: int) -> int | None:
        """The nearest reference that is no relative of the partner either: it must not give away what is asked."""
        near = of.references[of.nearness]
        near = near[self.families[near] != self.families[partner]]
        return int(near[0]) if len(near) else None

    def fingerprint(self, a: int) -> Fingerprint:
        """A type's completed row, from what is known of it beside the references and of these among themselves."""
        references = np.flatnonzero(self.families != self.families[a])
        row = np.concatenate([self.known[a, references], self.known[references, a]])
        key = (a, row.tobytes())
        found = self._fingerprints.get(key)
        if found is None:
            if len(self._fingerprints) >= _MOST_FINGERPRINTS:
                self._fingerprints.clear()
            found = self._fingerprints[key] = self._completed(references, row)
        return found

    def _completed(self, references: Indices, row: Floats) -> Fingerprint:
        count = len(references)
        among = self.library[np.ix_(references, references)]
        observed = np.vstack([np.hstack([among, among.T]), row])
        if np.isnan(observed).all():
            nothing = np.empty(0)
            return Fingerprint(references[:0], nothing, nothing, nothing, references[:0])
        filled = np.clip(complete(observed, RANK, RIDGE).matrix, 0.0, 1.0)
        distance = np.sqrt(((filled[:-1] - filled[-1]) ** 2).sum(axis=1))
        nearness = np.argsort(distance, kind="stable")
        return Fingerprint(references, filled[-1, :count], filled[-1, count:], distance, nearness)


def profiling_plan(count: int, fraction: float, seed: int) -> Flags:
    """Which pairs of types are tried: at most this fraction of them, and as many for every type (one, if that is 0).

    The rounds of a tournament in seeded order, so that a larger fraction tries all that a smaller one tries. A type
    is never tried beside itself. With an odd number of types one sits out each round.
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"profiled fraction must be above 0 and at most 1, not {fraction}")
    tried = np.zeros((count, count), dtype=np.bool_)
    if count < 2:
        return tried
    seats = count + count % 2
    order = np.random.default_rng([seed, 3]).permutation(seats)
    for turn in range(max(1, int(fraction * (seats - 1) + 1e-9))):
        ring = np.roll(order[:-1], -turn)  # the circle method: one stays, the others move on by a seat
        ones, others = [order[-1], *ring[1 : seats // 2]], [ring[0], *ring[: seats // 2 - 1 : -1]]
        met = [(a, b) for a, b in zip(ones, others, strict=True) if a < count and b < count]
        for a, b in met:
            tried[a, b] = tried[b, a] = True
    return tried


@dataclass(frozen=True, slots=True)
class Sighting:
    """Two types seen on the same GPUs, and what each kept; 0 for both if they did not fit."""

    a: TypeKey
    b: TypeKey
    kept: tuple[float, float]

    def __post_init__(self) -> None:
        if not all(0.0 <= x <= 1.0 for x in self.kept):
            raise ValueError(f"a fraction kept must be within [0, 1], not {self.kept}")


@dataclass(frozen=True, slots=True)
class Sightings:
    """The mean of what was seen of each pair of types and how often, held once for both orders of the two.

    A pair that did not fit once never does, whatever else was seen of it: its mean is 0 for both.
    """

    means: Mapping[tuple[TypeKey, TypeKey], tuple[float, float, int]] = field(default_factory=dict)

    def adding(self, sightings: Iterable[Sighting]) -> "Sightings":
        """These and more."""
        means = dict(self.means)
        for seen in sightings:
            x, y = seen.kept
            if seen.a == seen.b:
                x = y = (x + y) / 2.0
            key, kept = ((seen.a, seen.b), (x, y)) if seen.a <= seen.b else ((seen.b, seen.a), (y, x))
            p, q, count = means.get(key, (0.0, 0.0, 0))
            more = count + 1
            if kept == _UNFIT or (count and (p, q) == _UNFIT):
                means[key] = (*_UNFIT, more)
            else:
                # As a step from the old mean, equal sightings leave it exactly where it is.
                means[key] = (p + (kept[0] - p) / more, q + (kept[1] - q) / more, more)
        return Sightings(means)

    def of(self, a: TypeKey, b: TypeKey) -> tuple[float, float] | None:
        """The mean of what the two kept; None if they were never seen together."""
        x, y, count = self.means.get((a, b) if a <= b else (b, a), (0.0, 0.0, 0))
        if not count:
            return None
        return (x, y) if a <= b else (y, x)


class EstimatedModel:
    """Rates alone as a ``ProfiledModel`` tells them; what sharing costs, estimated from a few profiled pairs.

    A seeded fraction of the pairs of measured types counts as profiled and is told exactly. The others are estimated,
    each job as if its type were new: its own row of the catalogue is hidden but for what was profiled. Pairs of types
    the catalogue never measured are taken to take turns, as there.
    """

    def __init__(self, topology: Topology, catalog: Catalog, profiled_fraction: float = 0.2, seed: int = 0) -> None:
        self.catalog = catalog
        self.seen = Sightings()
        self._alone = ProfiledModel(topology, catalog)
        self._types = {key: i for i, key in enumerate(_measured_types(catalog))}
        library = _library(catalog, list(self._types))
        tried = profiling_plan(len(library), profiled_fraction, seed)
        self._profiled = np.where(tried, library, np.nan)
        self._estimator = Estimator(library, self._profiled, np.arange(len(library)))
        self._pairs: dict[tuple[TypeKey, TypeKey], tuple[float, float]] = {}

    def rate(self, job: JobView, placement: Placement, batch: BatchSetting | None = None) -> Estimate:
        """The rate on exactly these seats, alone."""
        return self._alone.rate(job, placement, batch)

    def speeds(self, spec: JobSpec, batch_size: int | None = None) -> Floats:
        """By kind: the rate of the requested gang, seated well, alone."""
        return self._alone.speeds(spec, batch_size)

    def curve(self, job: JobView, kind: str) -> Floats:
        """By number of GPUs from 0 to the job's most: the rate on that kind, seated well, alone."""
        return self._alone.curve(job, kind)

    def colocated(self, a: JobView, b: JobView) -> tuple[float, float]:
        """What fraction of their rates two jobs keep when they share GPUs: seen, profiled or estimated."""
        one, other = type_of(self.catalog, a), type_of(self.catalog, b)
        if one is None or other is None or max(a.spec.gpus, b.spec.gpus) > 1:
            return TIME_SLICED
        found = self._pairs.get((one, other))
        if found is None:
            found = self._pairs[one, other] = self._pair(one, other)
        return found

    def goodput(self, job: JobView) -> GoodputReport | None:
        """What the catalogue knows of how its goodput depends on GPUs and batch size."""
        return self._alone.goodput(job)

    def parted(self, a: JobSpec, a_batch: int | None, b: JobSpec, b_batch: int | None) -> "EstimatedModel":
        """This model, knowing that two such jobs at these batch sizes do not fit on the same GPUs."""
        one, other = _type(self.catalog, a.model, a_batch), _type(self.catalog, b.model, b_batch)
        if one is None or other is None:
            return self
        return self.refined(self.seen.adding([Sighting(one, other, _UNFIT)]))

    def _pair(self, a: TypeKey, b: TypeKey) -> tuple[float, float]:
        if a in self._types and b in self._types:
            return self._estimator.pair(self._types[a], self._types[b])
        return self.seen.of(a, b) or TIME_SLICED

    def refined(self, seen: Sightings) -> "EstimatedModel":
        """This model, knowing what was seen; of an earlier model's sightings only those in ``seen`` count.

        What was seen of a pair overrides its estimate; if the pair was profiled, that counts as one sighting more, but
        not against having seen that it does not fit. The fingerprints of both types are taken anew, so that their other
        pairs gain as well.
        """
        known = self._profiled.copy()
        for (a, b), (x, y, count) in seen.means.items():
            if a in self._types and b in self._types:
                i, j = self._types[a], self._types[b]
                unfit = (x, y) == _UNFIT
                known[i, j] = 0.0 if unfit else _blended(self._profiled[i, j], x, count)
                known[j, i] = 0.0 if unfit else _blended(self._profiled[j, i], y, count)
        twin = copy(self)
        twin.seen, twin._estimator, twin._pairs = seen, self._estimator.knowing(known), {}
        return twin


def _blended(profiled: float, mean: float, count: int) -> float:
    return mean if np.isnan(profiled) else mean + (profiled - mean) / (count + 1)


def type_of(catalog: Catalog, job: JobView) -> TypeKey | None:
    """The type a job counts as: its model at its batch size, or the model's default one; None without a known model."""
    return _type(catalog, job.spec.model, job.batch_size)


def _type(catalog: Catalog, model: str | None, batch_size: int | None) -> TypeKey | None:
    if model is None or model not in catalog.profiles:
        return None
    return model, catalog.default_batch(model) if batch_size is None else batch_size


def sightings(snapshot: Snapshot, catalog: Catalog) -> tuple[Sighting, ...]:
    """What is seen of the pairs that run together now: each one's measured rate over its rate alone.

    Alone a job was measured on such seats before, or else goes as the snapshot's model says. A pair that does not fit
    never runs, and so is not here: see `EstimatedModel.parted`.
    """
    columns, found = snapshot.columns, []
    for i in np.flatnonzero(columns.partner > columns.rows).tolist():
        j = snapshot.position_of(int(columns.partner[i]))
        if j < 0:
            continue
        one, other = snapshot.jobs.at(i), snapshot.jobs.at(j)
        a, b = type_of(catalog, one), type_of(catalog, other)
        if a is not None and b is not None and all(x.state is JobState.RUNNING and x.rate > 0 for x in (one, other)):
            found.append(Sighting(a, b, (_kept(snapshot, one), _kept(snapshot, other))))
    return tuple(found)


def _kept(snapshot: Snapshot, job: JobView) -> float:
    placement = job.placement
    assert placement is not None
    cluster, batch = snapshot.cluster, job.batch_size or 0
    seats = (cluster.kind_of(placement), placement.gpus, cluster.locality(placement), batch)
    alike = [m.rate for m in job.measured if (m.kind, m.gpus, m.locality, m.batch_size) == seats]
    # The highest rate ever measured here counts as the rate alone only if it is not the one measured now.
    best = max(alike, default=0.0)
    alone = best if best > job.rate * (1.0 + 1e-9) else snapshot.perf.rate(job, placement).value
    return min(job.rate / alone, 1.0) if alone > 0 else 1.0


@dataclass(frozen=True, slots=True)
class EstimationError:
    """How good estimates are on pairs that were not profiled, beside what is reached without any profiling.

    ``error`` is the mean absolute error of a fraction, ``right`` how often it is rightly told whether sharing is worth
    it, that is whether the two fractions add up to more than 1. The baseline takes the mean of what others keep beside
    the partner, and so must know the partner's type: the estimator does not.
    """

    profiled_fraction: float
    pairs: int
    error: float
    right: float
    baseline_error: float
    baseline_right: float


def estimation_error(
    catalog: Catalog,
    profiled_fraction: float = 0.2,
    seeds: Sequence[int] = (0,),
    leave_out: Literal["type", "model"] = "model",
) -> EstimationError:
    """Estimate every unprofiled pair of the catalogue's measured types, each job without its type or whole model."""
    types = _measured_types(catalog)
    library = _library(catalog, types)
    groups = [key if leave_out == "type" else key[0] for key in types]
    families = np.array([groups.index(group) for group in groups], dtype=np.intp)
    rows: list[tuple[float, ...]] = []
    for seed in seeds:
        tried = profiling_plan(len(types), profiled_fraction, seed)
        estimator = Estimator(library, np.where(tried, library, np.nan), families)
        for a, b in zip(*np.nonzero(np.triu(~tried & ~np.isnan(library + library.T))), strict=True):
            others = (families != families[a]) & (families != families[b])
            plain = float(np.nanmean(library[others, b])), float(np.nanmean(library[others, a]))
            rows.append(_judged((library[a, b], library[b, a]), estimator.pair(int(a), int(b)), plain))
    error, right, baseline_error, baseline_right = np.mean(rows, axis=0).tolist()
    return EstimationError(profiled_fraction, len(rows), error, right, baseline_error, baseline_right)


def _judged(truth: tuple[float, float], *guesses: tuple[float, float]) -> tuple[float, ...]:
    """By guess: its mean absolute error, and whether it tells rightly if sharing is worth it."""
    return tuple(
        figure
        for guess in guesses
        for figure in (
            (abs(guess[0] - truth[0]) + abs(guess[1] - truth[1])) / 2.0,
            float((sum(guess) > 1.0) == (sum(truth) > 1.0)),
        )
    )


def _measured_types(catalog: Catalog) -> list[TypeKey]:
    return list(dict.fromkeys(key for pair in catalog.shared for key in pair))


def _library(catalog: Catalog, types: Sequence[TypeKey]) -> Floats:
    """What was measured of each pair both ways; NaN where it was not."""
    pairs = [(catalog.shared.get((a, b), np.nan), catalog.shared.get((b, a), np.nan)) for a in types for b in types]
    table = np.array(pairs, dtype=np.float64).reshape(len(types), len(types), 2)
    return np.where(np.isnan(table).any(axis=2), np.nan, table[:, :, 0])
