"""Estimate of the speed that two jobs keep on shared GPUs, from a few measured pairs: Gavel's throughput estimator.

A new type of job (a model at a batch size) is profiled beside a few reference types. Matrix completion extends these
figures to a whole row, the *fingerprint*: the fraction of its rate that the type keeps beside every reference, and the
fraction that each reference keeps beside it. The reference with the nearest row is the type's likeness. For two types
that were not profiled together, each is expected to treat the other as it treats the other's likeness; the two
expectations are averaged.

All functions are pure. An estimate is a fraction of the rate alone in [0, 1]; as in the catalogue, one fraction holds
for every kind of GPU, and jobs on several GPUs are assumed to take turns.

References: Gavel (OSDI '20) §3.3, §6 and figure 16; Quasar (ASPLOS '14) for fingerprints by matrix completion.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.snapshot import Estimate, JobView
from shoal.core.topology import Placement, Topology
from shoal.perf.catalog import TIME_SLICED, Catalog, TypeKey
from shoal.perf.matrix_completion import complete
from shoal.perf.model import ProfiledModel

RANK, RIDGE = 2, 0.3
"""For fractions of 0 to 1 between some 25 types: a held-out error of 0.147 on the catalogue, against 0.184 at rank 0,
0.167 at rank 1, 0.159 at rank 3 and 0.149 at rank 4; from a tenth to three times the ridge it moves by 0.002."""

_MOST_FINGERPRINTS = 4096
"""Fingerprints cached; there is one for each state of knowledge about each type."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Completed row of a type: by reference, the fraction that the type keeps, and that the reference keeps."""

    references: Indices
    kept: Floats
    left: Floats
    nearness: Indices

    def likeness(self, partner: int) -> int | None:
        """Return the nearest reference except the partner, whose own figures must not be used; None without any."""
        near = self.references[self.nearness]
        near = near[near != partner]
        return int(near[0]) if len(near) else None


@dataclass(frozen=True)
class Estimator:
    """Estimates by type, from square matrices (types × types) with NaN for unknown entries.

    ``library[i, j]`` is the fraction that type i keeps beside type j when both serve as references; ``known[i, j]`` is
    the fraction measured for the two themselves. A fingerprint of a type leaves the library's entries for that type
    out, and an estimate of a pair leaves out the library's entry for the pair. Each of the two does serve among the
    other's references.
    """

    library: Floats
    known: Floats
    _fingerprints: dict[tuple[int, bytes], Fingerprint] = field(default_factory=dict, repr=False, compare=False)

    def knowing(self, known: Floats) -> "Estimator":
        """Return an estimator with the same library and other known entries."""
        return Estimator(self.library, known, self._fingerprints)

    def pair(self, a: int, b: int) -> tuple[float, float]:
        """Fractions that types a and b keep beside each other: the known ones, else estimates.

        Swapping the types swaps the answer. Without a reference to compare with, they are assumed to take turns.
        """
        if not np.isnan(self.known[a, b] + self.known[b, a]):
            return float(self.known[a, b]), float(self.known[b, a])
        one, other = self.fingerprint(a), self.fingerprint(b)
        like_a, like_b = one.likeness(b), other.likeness(a)
        if like_a is None or like_b is None:
            return TIME_SLICED
        at_b, at_a = int(np.searchsorted(one.references, like_b)), int(np.searchsorted(other.references, like_a))
        return (
            float(one.kept[at_b] + other.left[at_a]) / 2.0,
            float(one.left[at_b] + other.kept[at_a]) / 2.0,
        )

    def fingerprint(self, a: int) -> Fingerprint:
        """A type's completed row, from its known entries and the library of the other types."""
        references = np.flatnonzero(np.arange(len(self.library)) != a)
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
            return Fingerprint(references[:0], np.empty(0), np.empty(0), references[:0])
        filled = np.clip(complete(observed, RANK, RIDGE), 0.0, 1.0)
        distance = np.sqrt(((filled[:-1] - filled[-1]) ** 2).sum(axis=1))
        return Fingerprint(references, filled[-1, :count], filled[-1, count:], np.argsort(distance, kind="stable"))


def profiling_plan(count: int, fraction: float, seed: int) -> Flags:
    """Return the pairs of types to profile (types × types), at most this fraction, equally many for each type.

    Each type has at least one. The pairs are the rounds of a tournament in seeded order, so that a larger fraction
    includes the pairs of a smaller one. A type is never paired with itself. With an odd number of types one has no
    partner in each round.
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"profiled fraction must be above 0 and at most 1, not {fraction}")
    tried = np.zeros((count, count), dtype=np.bool_)
    if count < 2:
        return tried
    seats = count + count % 2
    order = np.random.default_rng([seed, 3]).permutation(seats)
    for turn in range(max(1, int(fraction * (seats - 1) + 1e-9))):
        ring = np.roll(order[:-1], -turn)  # the circle method: one type stays in place, the others rotate
        ones, others = [order[-1], *ring[1 : seats // 2]], [ring[0], *ring[: seats // 2 - 1 : -1]]
        for a, b in zip(ones, others, strict=True):
            if a < count and b < count:
                tried[a, b] = tried[b, a] = True
    return tried


class EstimatedModel:
    """Rates alone from a `ProfiledModel`; the cost of sharing estimated from a few profiled pairs.

    A seeded fraction of the pairs of measured types counts as profiled and is used exactly. The others are estimated,
    each job as if its type were new: its own row of the catalogue is hidden but for the profiled entries. Pairs of
    types that the catalogue has no measurement of are assumed to take turns. ``unfit`` are pairs of types found out
    not to fit on the same GPUs: they keep 0, both ways round.
    """

    def __init__(self, topology: Topology, catalog: Catalog, profiled_fraction: float = 0.2, seed: int = 0) -> None:
        self.catalog = catalog
        self.unfit: frozenset[tuple[TypeKey, TypeKey]] = frozenset()
        self._alone = ProfiledModel(topology, catalog)
        types = list(dict.fromkeys(key for pair in catalog.shared for key in pair))
        self._types = {key: i for i, key in enumerate(types)}
        library = _library(catalog, types)
        tried = profiling_plan(len(library), profiled_fraction, seed)
        self._estimator = Estimator(library, np.where(tried, library, np.nan))
        self._pairs: dict[tuple[TypeKey, TypeKey], tuple[float, float]] = {}

    def rate(self, job: JobView, placement: Placement, batch: BatchSetting | None = None) -> Estimate:
        """The rate on exactly these seats, alone."""
        return self._alone.rate(job, placement, batch)

    def speeds(self, spec: JobSpec, batch_size: int | None = None) -> Floats:
        """By kind: the rate of the requested gang, on as few nodes as possible, alone."""
        return self._alone.speeds(spec, batch_size)

    def curve(self, job: JobView, kind: str) -> Floats:
        """By number of GPUs from 0 to the job's most: the rate on that kind, on as few nodes as possible, alone."""
        return self._alone.curve(job, kind)

    def goodput(self, job: JobView) -> GoodputReport | None:
        """The catalogue's goodput report of the job."""
        return self._alone.goodput(job)

    def colocated(self, a: JobView, b: JobView) -> tuple[float, float]:
        """Fractions of their rates that two jobs keep on shared GPUs: profiled or estimated, 0 where they do not fit.

        A job's type is its model at its batch size, or at the model's default one.
        """
        one, other = self._type(a.spec, a.batch_size), self._type(b.spec, b.batch_size)
        if one is None or other is None or max(a.spec.gpus, b.spec.gpus) > 1:
            return TIME_SLICED
        found = self._pairs.get((one, other))
        if found is None:
            found = self._pairs[one, other] = self._pair(one, other)
        return found

    def parted(self, a: JobSpec, a_batch: int | None, b: JobSpec, b_batch: int | None) -> "EstimatedModel":
        """Return this model with the knowledge that two such jobs at these batch sizes do not fit on the same GPUs.

        The fingerprints of both types are made anew, so that the estimates of their other pairs improve as well.
        """
        one, other = self._type(a, a_batch), self._type(b, b_batch)
        if one is None or other is None:
            return self
        model = copy(self)
        model.unfit, model._pairs = self.unfit | {(one, other), (other, one)}, {}
        if one in self._types and other in self._types:
            i, j = self._types[one], self._types[other]
            known = self._estimator.known.copy()
            known[i, j] = known[j, i] = 0.0
            model._estimator = self._estimator.knowing(known)
        return model

    def on(self, cluster: Topology) -> "EstimatedModel":
        """Return the model for another cluster, with the same knowledge of pairs."""
        model = copy(self)
        model._alone = self._alone.on(cluster)
        return model

    def _pair(self, a: TypeKey, b: TypeKey) -> tuple[float, float]:
        if a in self._types and b in self._types:
            return self._estimator.pair(self._types[a], self._types[b])
        return (0.0, 0.0) if (a, b) in self.unfit else TIME_SLICED

    def _type(self, spec: JobSpec, batch_size: int | None) -> TypeKey | None:
        return self.catalog.type_key(spec.model, batch_size)


def _library(catalog: Catalog, types: Sequence[TypeKey]) -> Floats:
    """Measured fractions (types × types); NaN where a pair was not measured both ways round."""
    pairs = [(catalog.shared.get((a, b), np.nan), catalog.shared.get((b, a), np.nan)) for a in types for b in types]
    table = np.array(pairs, dtype=np.float64).reshape(len(types), len(types), 2)
    return np.where(np.isnan(table).any(axis=2), np.nan, table[:, :, 0])
