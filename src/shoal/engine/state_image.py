"""Images of a state: all that its future depends on, without ended jobs, as the base of a journal's segment.

An image holds the live jobs and sums over the ended ones. The policy's ``carry`` is not in it: after ``restore``, as
after a restart, policies decide without one.
"""

import zlib
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from shoal.core.bids import StandingBid
from shoal.core.columns import FloatRow, IntRow
from shoal.core.errors import JournalError
from shoal.core.events import JobSetAside
from shoal.core.goodput import GoodputReport
from shoal.core.interfaces import LearnsOfPairs, PerfModel
from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.quota import Quota
from shoal.core.retry import Crashes
from shoal.core.snapshot import Measurement
from shoal.core.suspension import NodeSuspension, SuspendedRun, Suspensions
from shoal.core.topology import Node, Placement
from shoal.core.units import JobNumber, Seconds, TenantId
from shoal.engine.job_rows import JobRows
from shoal.engine.node_folds import declared_speeds, set_topology
from shoal.engine.node_use import NodeUse
from shoal.engine.state import State
from shoal.engine.training_reports import BatchChanges, TrainingReports
from shoal.perf.length_history import LengthImage


@dataclass(frozen=True, slots=True)
class JobImage:
    """A live job: its number, specification and time of submission, its rows of values, and what they refer to.

    ``excluded`` are the kinds it is no longer tried on, ``avoided`` the nodes; ``release`` is when a held job may
    start, if that is known; ``on_hold`` if a person holds it.
    """

    number: JobNumber
    spec: JobSpec
    at: Seconds
    floats: tuple[float, ...]
    ints: tuple[int, ...]
    excluded: tuple[int, ...] = ()
    seats: Placement | None = None
    measured: tuple[Measurement, ...] = ()
    crashes: Crashes | None = None
    release: Seconds | None = None
    report: GoodputReport | None = None
    changes: BatchChanges = ()
    avoided: tuple[int, ...] = ()
    on_hold: bool = False
    suspended: SuspendedRun | None = None
    suspended_bytes: int = 0
    unsuspendable: str = ""
    length_scale: float = 0.0


@dataclass(frozen=True, slots=True)
class StateImage:
    """A state without its ended jobs; ``tenants`` are pairs of a name and the GPU-seconds of its ended jobs."""

    now: Seconds
    cycle: int
    submitted: int
    kinds: tuple[str, ...]
    down: tuple[int, ...]
    jobs: tuple[JobImage, ...]
    tenants: tuple[tuple[TenantId, float], ...]
    models: tuple[tuple[str, GoodputReport], ...] = ()
    bids: tuple[tuple[str, StandingBid], ...] = ()
    unfit: tuple[tuple[tuple[str, int], tuple[str, int]], ...] = ()
    set_aside: tuple[JobSetAside, ...] = ()
    quotas: tuple[tuple[TenantId, Quota], ...] = ()
    overran: str | None = None
    drained: tuple[tuple[int, str], ...] = ()
    probed: tuple[int, ...] = ()
    suspending: tuple[tuple[int, NodeSuspension], ...] = ()
    lengths: LengthImage | None = None
    joined: tuple[Node, ...] = ()
    """Nodes beyond those that the header declares, in order."""
    removed: tuple[int, ...] = ()


_VERSION = b"\x01"


class UnreadableBase(JournalError):
    """The base of a segment was written by another version of Shoal: the segments before it must be read instead."""


def encode_image(image: StateImage) -> bytes:
    """Return an image as compressed bytes, the same on every machine."""
    return _VERSION + zlib.compress(msgspec.msgpack.encode(image), 1)


def decode_image(data: bytes) -> StateImage:
    """Return an image from its bytes; ``JournalError`` if another version of Shoal wrote them."""
    if data[:1] != _VERSION:
        raise UnreadableBase(f"the base of this segment cannot be read: it has version {data[:1].hex() or 'none'}")
    try:
        return msgspec.msgpack.decode(zlib.decompress(data[1:]), type=StateImage)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise UnreadableBase(f"the base of this segment cannot be read: {error}") from error


def same_image(one: bytes, other: bytes) -> bool:
    """Return whether two encoded images are equal; one of an older version may lack later fields."""
    return one == other or encode_image(decode_image(one)) == encode_image(decode_image(other))


def image_of(state: State) -> StateImage:
    """Return the image of a state as it is now."""
    rows, register = state._jobs, state.register
    kept = [n for n in register.ids if JobState(rows.ints.item(IntRow.STATE, rows.slot_of(n))).live]
    apps = {number: name for name, number in rows.app_index.items()}
    unfit = sorted(state.perf.unfit) if isinstance(state.perf, LearnsOfPairs) else ()
    return StateImage(
        now=state.now,
        cycle=state.cycle,
        submitted=rows.submitted,
        kinds=tuple(state.topology.kinds),
        down=tuple(sorted(state.topology.down)),
        jobs=tuple(_job_image(state, number) for number in kept),
        tenants=tuple(zip(register.tenants, rows.tenant_service.tolist(), strict=True)),
        models=tuple(state._training_reports.by_model.items()),
        bids=tuple((apps[app], bid) for app, bid in state._bids.items()),
        unfit=tuple(unfit),
        set_aside=tuple(state._set_aside.values()),
        quotas=tuple(state._quotas.items()),
        overran=state._overran,
        drained=tuple(sorted(state.nodes.drained.items())),
        probed=tuple(sorted(state.nodes.probed)),
        suspending=tuple(sorted(state.suspensions.nodes.items())),
        lengths=state.lengths.image(),
        joined=state.topology.nodes[state.declared_nodes :],
        removed=tuple(sorted(state.topology.removed)),
    )


def _job_image(state: State, number: JobNumber) -> JobImage:
    rows, reports, spec = state._jobs, state._training_reports, state.register.specs[number]
    slot, changes = rows.slot_of(number), reports.changes.get(number, ())
    speeds, usual = rows.floats[FloatRow.SPEEDS :, slot], declared_speeds(state.perf, spec, changes)
    ints = rows.ints[:, slot].tolist()
    measured, link = [], ints[IntRow.MEASURED]
    ints[IntRow.SEATS] = ints[IntRow.MEASURED] = -1  # places in tables, which are made anew
    while link >= 0:
        link, measurement = state.register.measurements[link]
        measured.append(measurement)
    return JobImage(
        number,
        spec,
        rows.submitted_at[slot],
        tuple(rows.floats[: FloatRow.SPEEDS, slot].tolist()),
        tuple(ints),
        tuple(np.flatnonzero((speeds == 0.0) & (usual > 0.0)).tolist()),
        rows.placement(slot),
        tuple(measured),
        state._crashes.get(number),
        state.releases.get(number),
        reports.reports.get(number),
        changes,
        tuple(sorted(state.nodes.avoided.get(number, ()))),
        number in state.on_hold,
        state.suspensions.runs.get(number),
        state.suspensions.sizes.get(number, 0),
        state.suspensions.refused.get(number, ""),
        rows.length_scale[slot],
    )


def renumbered(image: StateImage) -> StateImage:
    """Return the image with its jobs numbered from 0 on, in the same order."""
    number = {job.number: new for new, job in enumerate(image.jobs)}
    jobs = [
        replace(
            job,
            number=number[job.number],
            ints=tuple(number.get(n, -1) if i == IntRow.PARTNER else n for i, n in enumerate(job.ints)),
        )
        for job in image.jobs
    ]
    bids = [(app, replace(bid, jobs=tuple(number[n] for n in bid.jobs if n in number))) for app, bid in image.bids]
    aside = [replace(event, job=number[event.job]) for event in image.set_aside]
    return replace(image, submitted=len(jobs), jobs=tuple(jobs), bids=tuple(bids), set_aside=tuple(aside))


def restore(state: State, image: StateImage) -> None:
    """Give a state the contents of an image, on the state's own cluster, which may have more nodes.

    The performance model stays the state's own, with what the image knows of pairs of jobs.
    """
    _restore_nodes(state, image)
    if isinstance(state.perf, LearnsOfPairs):
        for one, other in image.unfit:
            state.perf = _parted(state.perf, one, other)
    state.now, state.cycle, state.carry = image.now, image.cycle, None
    state.free_gpus = type(state.free_gpus).of(state.topology)
    avoided = {job.number: frozenset(job.avoided) for job in image.jobs if job.avoided}
    state.nodes = NodeUse(dict(image.drained), frozenset(image.probed), avoided)
    state.suspensions = _suspensions(image)
    for node in sorted(set(state.nodes.drained) - state.nodes.probed):
        state.free_gpus.close(node)
    cancelling = int(JobState.CANCELLING)
    state.cancelling = {job.number for job in image.jobs if job.ints[IntRow.STATE] == cancelling}
    state.releases = {job.number: job.release for job in image.jobs if job.release is not None}
    state.on_hold = {job.number for job in image.jobs if job.on_hold}
    state._priorities = {job.number: job.spec.priority for job in image.jobs if job.spec.priority}
    state._crashes = {job.number: job.crashes for job in image.jobs if job.crashes is not None}
    state._training_reports = TrainingReports(
        {job.number: job.report for job in image.jobs if job.report is not None},
        dict(image.models),
        {job.number: job.changes for job in image.jobs if job.changes},
    )
    state.lengths = state.lengths.restored(image.lengths or LengthImage())
    state._set_aside = {event.job: event for event in image.set_aside}
    state._quotas, state._overran = dict(image.quotas), image.overran
    state._jobs.secure()
    state._jobs = rows = JobRows(len(state.topology.kinds))
    for tenant, _ in image.tenants:
        rows.tenant_number(tenant)
    rows.tenant_service[:] = [service for _, service in image.tenants]
    for job in image.jobs:
        _restore_job(state, job)
    rows.submitted = image.submitted
    state._paired = {job.number for job in image.jobs if job.ints[IntRow.PARTNER] >= 0}
    state._bids = {rows.app_index[app]: bid for app, bid in image.bids}


def _restore_nodes(state: State, image: StateImage) -> None:
    """Give a state the nodes that joined by events, and mark those that are down or removed."""
    topology = state.topology
    for joined in image.joined:
        if joined.name not in topology.node_index:  # else a later header declares it
            topology = topology.joined(len(topology.nodes), joined)
    if topology is not state.topology or topology.removed != set(image.removed):
        set_topology(state, topology.without_for_good(image.removed))
    if tuple(state.topology.kinds[: len(image.kinds)]) != image.kinds:
        kinds = ", ".join(state.topology.kinds)
        raise JournalError(f"a base of a cluster of {', '.join(image.kinds)} cannot begin a segment on {kinds}")
    for node in sorted(state.topology.down - set(image.down)):
        state.topology = state.topology.with_back(node)
    for node in sorted(set(image.down) - state.topology.down):
        state.topology = state.topology.without(node)


def _suspensions(image: StateImage) -> Suspensions:
    return Suspensions(
        dict(image.suspending),
        {job.number: job.suspended for job in image.jobs if job.suspended is not None},
        {job.number: job.suspended_bytes for job in image.jobs if job.suspended_bytes},
        {job.number: job.unsuspendable for job in image.jobs if job.unsuspendable},
    )


def _restore_job(state: State, job: JobImage) -> None:
    rows = state._jobs
    speeds = declared_speeds(state.perf, job.spec, job.changes).copy()
    speeds[list(job.excluded)] = 0.0
    rows.submitted = job.number
    rows.add(job.at, job.spec, speeds, state.lengths.place(job.spec, speeds, job.length_scale))
    slot = rows.slot_of(job.number)
    rows.floats[: len(job.floats), slot] = job.floats  # an older version's image has fewer rows
    rows.ints[: len(job.ints), slot] = job.ints
    rows.hold(slot, rows.held[slot])
    rows.ints[IntRow.SEATS, slot] = -1 if job.seats is None else rows.placement_number(job.seats)
    table, link = rows.register.measurements, -1
    for measurement in reversed(job.measured):
        table.append((link, measurement))
        link = len(table) - 1
    rows.ints[IntRow.MEASURED, slot] = link
    partner = job.ints[IntRow.PARTNER]
    shared = 0 <= partner < job.number and rows.placement(rows.slot_of(partner)) == job.seats
    if job.seats is not None and not shared:
        state.free_gpus.take(job.seats)
    if job.ints[IntRow.STATE] in (JobState.HELD, JobState.CANCELLING):
        rows.withdraw(slot)


def _parted(perf: PerfModel, one: tuple[str, int], other: tuple[str, int]) -> PerfModel:
    specs = [JobSpec("", 0.0, 1, None, 1, 1, model=model) for model, _ in (one, other)]
    return perf.parted(specs[0], one[1], specs[1], other[1]) if isinstance(perf, LearnsOfPairs) else perf
