"""What a policy answers: one verdict per live job, each with a reason in numbers that can be said as a sentence.

Verdicts are columns inside and objects at the edge: a policy that thinks in arrays returns ``Verdicts`` and pays
nothing per job; a newcomer's policy returns a plain dict of ``Grant`` and ``Refusal`` and gets the same treatment.
"""

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from shoal.core.arrays import Flags, Floats, Int8s, Int32s, Strings, UInt8s
from shoal.core.errors import PolicyError
from shoal.core.job import BatchSetting
from shoal.core.topology import Placement
from shoal.core.units import JobId, Seconds

if TYPE_CHECKING:
    from shoal.core.snapshot import Snapshot

Number: TypeAlias = float | str
NumberColumn: TypeAlias = Floats | Int32s | Strings | float | str


_LITTLE = np.dtype("<i4")
_ONE = re.compile(r"(?<![\d,.])1 GPUs\b")


class ReasonCode(IntEnum):
    """Why a job got what it got; ``SENTENCES`` says it in words."""

    IN_TURN = 0
    FITS = 1
    PASSED_AHEAD = 2
    LEASED = 3
    FAIR_SHARE = 4
    MARGINAL_GAIN = 5
    MATCHED = 6
    PACKED = 7
    KEPT_SEATS = 8
    ROUND_TURN = 9
    ROUND_FILLS = 10
    STRETCHED = 11
    AUCTION_WON = 12
    AUCTION_HANDED = 13
    ALLOTTED = 14
    SMALLEST = 15
    WINDOW_RUNS = 16
    WINDOW_FILLS = 17
    DUE = 18
    PRESSING = 19
    OUTRANKED = 20
    BEHIND_HEAD = 21
    NO_ROOM = 22
    TOO_LARGE = 23
    NO_KIND = 24
    FRAGMENTED = 25
    SHARE_TOO_SMALL = 26
    LATER_ON_BETTER = 27
    STOPPING = 28
    PARTNER_UNSEATED = 29
    ROUND_WAITS = 30
    ROUND_NEW = 31
    AUCTION_LOST = 32
    AUCTION_UNINVITED = 33
    WORTH_LESS = 34
    ALLOTTED_LATER = 35
    WINDOW_WAITS = 36
    WINDOW_OUT = 37
    HAS_TIME = 38
    IN_WORDS = 40


Numbers: TypeAlias = Mapping[ReasonCode, tuple[NumberColumn, ...]]

_C = ReasonCode

SENTENCES: dict[ReasonCode, str] = {
    _C.IN_TURN: "runs: its {0} is {1:,.6g}, within the {2:,.6g} up to which jobs are served",
    _C.FITS: "runs: it fits, {0:,.0f} of {1:,.0f} GPUs are in use",
    _C.PASSED_AHEAD: "runs ahead of its turn: it fits in {0:,.0f} GPUs that the head of the line cannot use",
    _C.LEASED: "keeps its GPUs: its lease runs until t = {0:,.6g} s",
    _C.FAIR_SHARE: "runs on its share: {0:,.6g} GPUs of an equal {1:,.6g}",
    _C.MARGINAL_GAIN: "runs on {0:,.0f} GPUs: its last one was worth {1:,.4g}, the next bidder's {2:,.4g}",
    _C.MATCHED: "runs now: matched to {0}, expected to take {1:,.6g} s",
    _C.PACKED: "shares GPUs with {0}: together they make {1:,.4g} times the progress",
    _C.KEPT_SEATS: "keeps its {0:,.0f} GPUs: {1:,.0f} could not be seated ({2:,.0f} free, largest block {3:,.0f})",
    _C.ROUND_TURN: "runs this round on {0}: its share is {1:,.0f}% there and {2:,.0f}% in all, it has had {3:,.0f}%{4}",
    _C.ROUND_FILLS: "runs this round on {0}, left over by others: its share is {1:,.0f}%, it has had {2:,.0f}%{3}",
    _C.STRETCHED: "runs on {0:,.0f} GPUs: the last made it {1:,.4g}% faster, one more would make it {2:,.4g}%",
    _C.AUCTION_WON: "runs on {0:,.0f} GPUs: its app, at ρ {1:,.4g}, won {2:,.0f} at auction, paid {3:,.0f}% of them "
    "and kept {4:,.0f}, with {5:,.0f} left over by others; leased until t = {6:,.6g} s",
    _C.AUCTION_HANDED: "runs on {0:,.0f} GPUs: its app, at ρ {1:,.4g}, was handed {2:,.0f} of the {3:,.0f} auctioned "
    "that nobody kept; leased until t = {4:,.6g} s",
    _C.WINDOW_RUNS: "runs this round: planned for {0:,.0f} of the window's {1:,.0f} rounds left, to end at ρ {2:,.4g}",
    _C.WINDOW_FILLS: "runs this round on GPUs left free by the plan, which gives it {0:,.0f} of the window's {1:,.0f} "
    "rounds left; to end at ρ {2:,.4g}",
    _C.ALLOTTED: "runs on {0:,.0f} GPUs: {1:,.4g} times the goodput of its fair share, {2:,.4g} GPUs; its "
    "weight is {3:,.4g}",
    _C.DUE: "runs first: to be fair it is to be done by t = {0:,.6g} s, and it takes {1:,.6g} s more at best",
    _C.PRESSING: "runs: it takes {0:,.6g} s more, and if it waited not all could be done by t = {1:,.6g} s",
    _C.SMALLEST: "runs: the {0:,.6g} GPU-seconds it still takes are among the least; its fair finish is t = {1:,.6g} s",
    _C.OUTRANKED: "waits: its {0} is {1:,.6g}; jobs up to {2:,.6g} take the GPUs",
    _C.BEHIND_HEAD: "waits its turn: {0} is first and needs {1:,.0f} GPUs, with {2:,.0f} free",
    _C.NO_ROOM: "waits: needs {0:,.0f} GPUs; {1:,.0f} left when its turn comes",
    _C.TOO_LARGE: "cannot run: needs {0:,.0f} GPUs of one kind; the most this cluster has is {1:,.0f}",
    _C.NO_KIND: "cannot run: none of the cluster's GPU types ({0}) is one it can use",
    _C.FRAGMENTED: "waits: fragmented, {1:,.0f} GPUs free, largest block {2:,.0f}; needs {0:,.0f}",
    _C.SHARE_TOO_SMALL: "waits: its share is {0:,.4g} GPUs, it needs {1:,.0f}",
    _C.LATER_ON_BETTER: "waits: number {1:,.0f} in the queue of {0}, expected there in {2:,.6g} s",
    _C.STOPPING: "waits: its last run is still being stopped",
    _C.PARTNER_UNSEATED: "waits: the job it was to share GPUs with ({0}) has no seat",
    _C.ROUND_WAITS: "waits: its share is {0:,.0f}%, mostly on {1}; it has had {2:,.0f}% and is owed {3:,.1f} rounds{4}",
    _C.ROUND_NEW: "waits: it is new, and has a share from the next round on, at t = {0:,.6g} s",
    _C.AUCTION_LOST: "waits: its app, at ρ {0:,.4g}, bid for up to {1:,.0f} GPUs and has {2:,.0f} for "
    "other jobs, having paid {3:,.0f}%",
    _C.AUCTION_UNINVITED: "waits: its app, at ρ {3:,.4g}, is not among the {0:,.0f} that bid for {2:,.0f} GPUs, at ρ "
    "{1:,.4g} and above; it was handed {4:,.0f} for other jobs",
    _C.WINDOW_WAITS: "waits: planned for {0:,.0f} of the window's {1:,.0f} rounds left, from t = {2:,.6g} s on, to end "
    "at ρ {3:,.4g}",
    _C.WINDOW_OUT: "waits: planned for none of the window's {0:,.0f} rounds left, to end at ρ {1:,.4g} at best; who "
    "runs has up to {2:,.4g}",
    _C.ALLOTTED_LATER: "waits: GPUs are allotted anew at t = {0:,.6g} s; until then nobody moves",
    _C.WORTH_LESS: "waits: {0:,.0f} GPUs would give it {1:,.4g} times the goodput of its fair share, worth {2:,.4g} at "
    "weight {3:,.4g}; the {4:,.0f} jobs that have {5:,.0f} GPUs are worth more in all",
    _C.HAS_TIME: "waits: smaller jobs go first; it takes {0:,.6g} s more and moves up at t = {1:,.6g} s at the latest, "
    "its fair finish being t = {2:,.6g} s",
    _C.IN_WORDS: "{0}",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and its numbers; the sentence is made when somebody asks."""

    code: ReasonCode
    numbers: tuple[Number, ...] = ()

    def sentence(self) -> str:
        """The reason in one sentence with the numbers in it."""
        return _ONE.sub("1 GPU", SENTENCES[self.code].format(*self.numbers))


def in_words(text: str) -> Reason:
    """A reason of a policy's own, when no code fits."""
    return Reason(ReasonCode.IN_WORDS, (text,))


_GRANTED = in_words("runs: the policy granted it these GPUs")
_REFUSED = in_words("waits: the policy gave it no GPUs")


class Grant(NamedTuple):
    """GPUs for a job: how many, and only where the policy cares, of which kind, shared with whom, exactly where.

    ``consolidated`` asks for one node; if none has the room the job sits apart rather than wait.
    Sharing is mutual and of equal gangs; it is enough that one of the two grants names the other. A tuple, like
    `Refusal`, because a policy that thinks job by job makes them by the million, and a frozen dataclass costs three
    times as much to make.
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
        """Whether it asks for more than a number of GPUs."""
        special = self.placement is not None or self.batch is not None or self.consolidated
        return special or not (self.kind is self.shared_with is None)


class Refusal(NamedTuple):
    """No GPUs for now."""

    reason: Reason = _REFUSED


Verdict: TypeAlias = Grant | Refusal


class Verdicts(Mapping[JobId, Verdict]):
    """One verdict for each job of a snapshot, by column: position i is the i-th live job in order of admission.

    ``gpus[i] == 0`` is a refusal. ``kinds[i]`` is an index into the cluster's kinds or −1 for the placer's choice;
    ``partners[i]`` is the position of the job to share GPUs with, or −1; ``consolidated[i]`` asks for one node.
    ``numbers`` holds, for each code used, the numbers of its sentence: each a column, or a scalar that holds for every
    job. The constructor checks the lengths, so a verdict cannot be missing.
    """

    __slots__ = (
        "_own",
        "_snapshot",
        "batches",
        "codes",
        "consolidated",
        "gpus",
        "kinds",
        "numbers",
        "partners",
        "placements",
    )

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
        count = len(snapshot.columns)
        columns = (gpus, codes, kinds, partners, consolidated)
        if any(column is not None and len(column) != count for column in columns):
            raise PolicyError(f"a policy must answer for each of the {count} live jobs; a column has another length")
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
        """Verdicts from a plain dict; says which job was forgotten, or which is unknown."""
        if isinstance(verdicts, Verdicts):
            return verdicts
        ids = snapshot.ids
        try:
            ordered = [verdicts[i] for i in ids]
        except KeyError as missing:
            raise PolicyError(f"the policy gave no verdict for live job {missing.args[0]!r}") from None
        if len(verdicts) > len(ids):
            stranger = next(iter(verdicts.keys() - set(ids)))
            raise PolicyError(f"the policy gave a verdict for {stranger!r}, which is not a live job")
        counts = [v.gpus if type(v) is Grant else 0 for v in ordered]
        gpus = np.array(counts, dtype=np.int32)
        codes = np.array([v.reason.code for v in ordered], dtype=np.uint8)
        own = dict(enumerate(ordered))
        special = [(i, v) for i, v in enumerate(ordered) if type(v) is Grant and v.detailed]
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
        for i, _ in special:  # sharing is mutual: it is enough that one of the two says so
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

    def reason(self, i: int) -> Reason:
        """Why the job at position i got what it got."""
        own = self._own.get(i)
        if own is not None:
            return own.reason
        code = ReasonCode(int(self.codes[i]))
        columns = self.numbers.get(code, ())
        return Reason(code, tuple(n[i].item() if isinstance(n, np.ndarray) else n for n in columns))

    def at(self, i: int) -> Verdict:
        """The verdict for the job at position i."""
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
        """The same verdicts, except where placement had to say otherwise."""
        if not changes:
            return self
        gpus, codes = self.gpus.copy(), self.codes.copy()
        for i, verdict in changes.items():
            gpus[i] = verdict.gpus if isinstance(verdict, Grant) else 0
            codes[i] = verdict.reason.code
        return Verdicts(
            self._snapshot,
            gpus=gpus,
            codes=codes,
            numbers=self.numbers,
            kinds=self.kinds,
            partners=self.partners,
            consolidated=self.consolidated,
            batches=self.batches,
            placements=self.placements,
            own={**self._own, **changes},
        )

    def digest(self) -> int:
        """A checksum of who got how much of what and why; equal decisions have equal digests on every machine."""
        columns = (self.gpus.astype(_LITTLE, copy=False), self.codes, self.kinds, self.partners, self.consolidated)
        crc = 0
        for column in columns:
            if column is not None:
                crc = zlib.crc32(np.ascontiguousarray(column).data, crc)
        for i in sorted(self.placements):
            crc = zlib.crc32(repr((i, self.placements[i].seats)).encode(), crc)
        for i in sorted(self.batches):
            crc = zlib.crc32(struct.pack("<iii", i, self.batches[i].size, self.batches[i].accumulation), crc)
        return crc

    def __getitem__(self, job: JobId) -> Verdict:
        return self.at(self._snapshot.position(job))

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._snapshot.ids)

    def __len__(self) -> int:
        return len(self.gpus)


def _partner(snapshot: "Snapshot", job: JobId) -> int:
    try:
        return snapshot.position(job)
    except KeyError:
        raise PolicyError(f"the policy granted GPUs shared with {job!r}, which is not a live job") from None


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's whole answer. It is asked again at ``review_at``, unless something happens first."""

    verdicts: Mapping[JobId, Verdict]
    review_at: Seconds = float("inf")
    carry: object | None = None


@dataclass(frozen=True, slots=True)
class Seating:
    """Where a placer put them, by position: only what changes. Everyone else stays as they are.

    ``leaving`` hold seats and lose them; ``seated`` get new seats; ``overruled`` had a grant that could not be seated.
    """

    leaving: tuple[int, ...] = ()
    seated: Mapping[int, Placement] = field(default_factory=dict)
    overruled: Mapping[int, Verdict] = field(default_factory=dict)
