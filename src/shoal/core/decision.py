"""A policy's answer: one verdict per live job, each with a reason.

Verdicts are stored as columns and read as objects: a policy that computes in arrays returns ``Verdicts`` at no cost per
job; a simple policy returns a plain dict of ``Grant`` and ``Refusal``.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s, Strings, UInt8s
from shoal.core.errors import PolicyError
from shoal.core.job import BatchSetting
from shoal.core.reasons import Reason, ReasonTemplate, in_words
from shoal.core.topology import Placement
from shoal.core.units import JobId, Seconds
from shoal.core.value import Value

if TYPE_CHECKING:
    from shoal.core.snapshot import Snapshot

NumberColumn: TypeAlias = Floats | Int32s | Strings | float | str
"""One number of a reason for all jobs: a column, or one scalar for all of them."""

Numbers: TypeAlias = Mapping[ReasonTemplate, tuple[NumberColumn, ...]]
"""By template that is the reason of at least one job: its numbers."""

_Column = TypeVar("_Column", bound=NDArray[Any])
_LITTLE = np.dtype("<i4")
_GRANTED = in_words("runs: the policy granted it these GPUs")
_REFUSED = in_words("waits: the policy gave it no GPUs")


class Grant(Value, frozen=True):
    """GPUs for a job. If kind and seats are None the placer chooses them; if the batch size is None it stays as it is.

    ``consolidated`` asks for one node; if none has enough free GPUs the job is spread rather than kept waiting. Sharing
    is mutual and between equal gangs; one of the two grants need not name the other job.
    """

    gpus: int
    kind: str | None = None
    shared_with: JobId | None = None
    batch: BatchSetting | None = None
    placement: Placement | None = None
    reason: Reason = _GRANTED
    consolidated: bool = False

    @property
    def detailed(self) -> bool:
        """Whether the grant specifies more than a number of GPUs."""
        special = self.placement is not None or self.batch is not None or self.consolidated
        return special or not (self.kind is self.shared_with is None)


class Refusal(Value, frozen=True):
    """No GPUs at this decision."""

    reason: Reason = _REFUSED


Verdict: TypeAlias = Grant | Refusal


class Verdicts(Mapping[JobId, Verdict]):
    """One verdict for each job of a snapshot, in columns: position i is the i-th live job in order of admission.

    ``gpus[i] == 0`` is a refusal. ``codes[i]`` is the code of its reason's template, one of those in ``numbers``.
    ``kinds[i]`` is an index into the cluster's kinds, or −1 for the placer's choice; ``partners[i]`` is the position of
    the job to share GPUs with, or −1; ``consolidated[i]`` asks for one node. ``own`` holds verdicts that are given as
    objects. The constructor checks the lengths, so no verdict can be missing.
    """

    def __init__(
        self,
        snapshot: "Snapshot",
        *,
        gpus: Int32s,
        codes: UInt8s,
        numbers: Numbers | None = None,
        kinds: Int8s | None = None,
        partners: Int32s | None = None,
        consolidated: Flags | None = None,
        batches: Mapping[int, BatchSetting] | None = None,
        placements: Mapping[int, Placement] | None = None,
        own: Mapping[int, Verdict] | None = None,
    ) -> None:
        count = len(snapshot.columns.rows)
        if (
            len(gpus) != count
            or len(codes) != count
            or (kinds is not None and len(kinds) != count)
            or (partners is not None and len(partners) != count)
            or (consolidated is not None and len(consolidated) != count)
        ):
            wrong = "a column has another length"
            raise PolicyError(f"a policy must answer for each of the {count} live jobs; {wrong}")
        self._snapshot = snapshot
        self.gpus = gpus
        self.codes = codes
        self.numbers = numbers or {}
        self.kinds = kinds
        self.partners = partners
        self.consolidated = consolidated
        self.batches = batches or {}
        self.placements = placements or {}
        self._own = own or {}

    @classmethod
    def of(cls, snapshot: "Snapshot", verdicts: Mapping[JobId, Verdict]) -> "Verdicts":
        """Verdicts from a plain dict; a job without a verdict, or an unknown one, is an error that names it."""
        if isinstance(verdicts, Verdicts):
            return verdicts
        ids = snapshot.ids
        try:
            ordered = list(map(verdicts.__getitem__, ids))
        except KeyError as missing:
            raise PolicyError(f"the policy gave no verdict for live job {missing.args[0]!r}") from None
        if len(verdicts) > len(ids):
            unknown = next(iter(verdicts.keys() - set(ids)))
            raise PolicyError(f"the policy gave a verdict for {unknown!r}, which is not a live job")
        gpus = np.array([v.gpus if type(v) is Grant else 0 for v in ordered], dtype=np.int32)
        reasons = [id(v.reason) for v in ordered]  # a simple policy's verdicts share a few
        one_of = dict(zip(reasons, ordered, strict=True))
        code_of = {at: int(v.reason.template.code) for at, v in one_of.items()}
        codes = np.frombuffer(bytes(map(code_of.__getitem__, reasons)), dtype=np.uint8)
        own = dict(enumerate(ordered))
        special = [(i, v) for i, v in own.items() if type(v) is Grant and v.detailed]
        if not special:
            return cls(snapshot, gpus=gpus, codes=codes, own=own)
        return cls._with_details(snapshot, gpus, codes, own, special)

    @classmethod
    def _with_details(
        cls,
        snapshot: "Snapshot",
        gpus: Int32s,
        codes: UInt8s,
        own: Mapping[int, Verdict],
        special: list[tuple[int, Grant]],
    ) -> "Verdicts":
        kinds = np.full(len(gpus), -1, dtype=np.int8)
        partners = np.full(len(gpus), -1, dtype=np.int32)
        consolidated = np.zeros(len(gpus), dtype=bool)
        batches: dict[int, BatchSetting] = {}
        placements: dict[int, Placement] = {}
        for i, grant in special:
            if grant.kind is not None:
                index = snapshot.cluster.kind_index.get(grant.kind)
                if index is None:
                    raise PolicyError(f"the policy granted {grant.kind!r}; the cluster has {snapshot.cluster.kinds}")
                kinds[i] = index
            if grant.shared_with is not None:
                partners[i] = _partner(snapshot, grant.shared_with)
            if grant.batch is not None:
                batches[i] = grant.batch
            if grant.placement is not None:
                placements[i] = grant.placement
            consolidated[i] = grant.consolidated
        for i, _ in special:  # sharing is mutual: it is enough that one of the two names the other
            if partners[i] >= 0 and partners[partners[i]] < 0 < gpus[partners[i]]:
                partners[partners[i]] = i
        return cls(
            snapshot,
            gpus=gpus,
            codes=codes,
            kinds=kinds,
            partners=partners,
            consolidated=consolidated if consolidated.any() else None,
            batches=batches,
            placements=placements,
            own=own,
        )

    @property
    def plain(self) -> bool:
        """Whether the grants state numbers of GPUs only: no kinds, partners or seats, and no demand for one node."""
        alone = self.kinds is None and self.partners is None and self.consolidated is None
        return alone and not self.placements

    def reason(self, i: int) -> Reason:
        """The reason of the verdict at position i."""
        own = self._own.get(i)
        if own is not None:
            return own.reason
        template = next((t for t in self.numbers if t.code == self.codes[i]), None)
        if template is None:
            raise PolicyError(f"the policy gave {self._snapshot.ids[i]!r} reason {self.codes[i]} without its numbers")
        columns = self.numbers[template]
        return Reason(template, tuple(n[i].item() if isinstance(n, np.ndarray) else n for n in columns))

    def at(self, i: int) -> Verdict:
        """The verdict at position i."""
        own = self._own.get(i)
        if own is not None:
            return own
        gpus = int(self.gpus[i])
        if not gpus:
            return Refusal(self.reason(i))
        kind = int(self.kinds[i]) if self.kinds is not None else -1
        partner = int(self.partners[i]) if self.partners is not None else -1
        return Grant(
            gpus,
            kind=self._snapshot.cluster.kinds[kind] if kind >= 0 else None,
            shared_with=self._snapshot.ids[partner] if partner >= 0 else None,
            batch=self.batches.get(i),
            placement=self.placements.get(i),
            reason=self.reason(i),
            consolidated=self.consolidated is not None and bool(self.consolidated[i]),
        )

    def overruled(self, changes: Mapping[int, Verdict]) -> "Verdicts":
        """Return these verdicts with others at the given positions."""
        if not changes:
            return self
        changed = copy(self)
        changed.gpus, changed.codes, changed._own = self.gpus.copy(), self.codes.copy(), {**self._own, **changes}
        where = np.fromiter(changes, dtype=np.intp, count=len(changes))
        changed.gpus[where] = [verdict.gpus if type(verdict) is Grant else 0 for verdict in changes.values()]
        changed.codes[where] = [verdict.reason.template.code for verdict in changes.values()]
        return changed

    def pinned(self, placements: Mapping[int, Placement]) -> "Verdicts":
        """Return the same verdicts, except that the jobs at these positions get these seats and share no GPUs."""
        if not placements:
            return self
        changed = copy(self)
        changed.gpus, changed._own = self.gpus.copy(), dict(self._own)
        changed.placements = {**self.placements, **placements}
        changed.kinds = None if self.kinds is None else self.kinds.copy()
        changed.partners = None if self.partners is None else self.partners.copy()
        changed.consolidated = None if self.consolidated is None else self.consolidated.copy()
        for i, placement in placements.items():
            changed.gpus[i] = placement.gpus
            if changed.kinds is not None:
                changed.kinds[i] = -1
            if changed.partners is not None:
                changed.partners[(changed.partners == i) | (np.arange(len(self.gpus)) == i)] = -1
            if changed.consolidated is not None:
                changed.consolidated[i] = False
            own = self._own.get(i)
            if isinstance(own, Grant):
                changed._own[i] = replace(own, gpus=placement.gpus, kind=None, shared_with=None, placement=placement)
        return changed

    def widened(self, snapshot: "Snapshot", keep: Indices, others: Mapping[int, Verdict]) -> "Verdicts":
        """Verdicts for a larger snapshot: these at its positions ``keep``, and ``others`` at all other positions."""
        count = len(snapshot.columns)

        def spread(column: _Column | None, rest: int) -> _Column | None:
            if column is None:
                return None
            wide = np.full(count, rest, dtype=column.dtype)
            wide[keep] = column
            return cast(_Column, wide)

        numbers = {
            template: tuple(_spread_numbers(n, count, keep) for n in columns)
            for template, columns in self.numbers.items()
        }
        partners = spread(self.partners, -1)
        if partners is not None and self.partners is not None:
            partners[keep] = np.where(self.partners >= 0, keep[self.partners], -1)
        wide = copy(self)
        wide._snapshot, wide.numbers, wide.partners = snapshot, numbers, partners
        wide.gpus, wide.codes = spread(self.gpus, 0), spread(self.codes, 0)  # type: ignore[assignment]
        wide.kinds, wide.consolidated = spread(self.kinds, -1), spread(self.consolidated, 0)
        wide.batches = {int(keep[i]): batch for i, batch in self.batches.items()}
        wide.placements = {int(keep[i]): seats for i, seats in self.placements.items()}
        wide._own = {int(keep[i]): own for i, own in self._own.items()}
        return wide.overruled(others)

    def digest(self) -> int:
        """A checksum of GPUs, reason codes, kinds, partners, seats and batches; the same on every machine."""
        gpus = self.gpus if self.gpus.dtype is _LITTLE else self.gpus.astype(_LITTLE)
        crc = _crc(self.codes, _crc(gpus, 0))
        for column in (self.kinds, self.partners, self.consolidated):
            if column is not None:
                crc = _crc(column, crc)
        if self.placements:
            seats = [repr((i, self.placements[i].seats)) for i in sorted(self.placements)]
            crc = zlib.crc32("".join(seats).encode(), crc)
        for i in sorted(self.batches) if self.batches else ():
            crc = zlib.crc32(struct.pack("<iii", i, self.batches[i].size, self.batches[i].accumulation), crc)
        return crc

    def __getitem__(self, job: JobId) -> Verdict:
        return self.at(self._snapshot.position(job))

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._snapshot.ids)

    def __len__(self) -> int:
        return len(self.gpus)


def _crc(column: NDArray[Any], crc: int) -> int:
    try:
        return zlib.crc32(column, crc)  # type: ignore[arg-type]
    except ValueError:  # it is not contiguous
        return zlib.crc32(np.ascontiguousarray(column), crc)  # type: ignore[arg-type]


def _spread_numbers(numbers: NumberColumn, count: int, keep: Indices) -> NumberColumn:
    if not isinstance(numbers, np.ndarray):
        return numbers
    wide = np.zeros(count, dtype=numbers.dtype)
    wide[keep] = numbers
    return wide


def _partner(snapshot: "Snapshot", job: JobId) -> int:
    try:
        return snapshot.position(job)
    except KeyError:
        raise PolicyError(f"the policy granted GPUs shared with {job!r}, which is not a live job") from None


class Decision(Value, frozen=True, gc=True):
    """A policy's answer, valid until ``review_at`` (seconds) or an urgent event; ``carry`` is for the next snapshot."""

    verdicts: Mapping[JobId, Verdict]
    review_at: Seconds = float("inf")
    carry: object | None = None


class Seating(Value, frozen=True):
    """The placements that change, by position in the snapshot.

    Jobs in ``leaving`` lose their seats, those in ``seated`` get new ones, and those in ``overruled`` had a grant for
    which there were no seats.
    """

    leaving: tuple[int, ...] = ()
    seated: Mapping[int, Placement] = {}
    overruled: Mapping[int, Verdict] = {}
