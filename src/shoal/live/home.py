"""Open a control plane on the journal in its home folder, which is created if there is none."""

import fcntl
import logging
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.core.errors import InputError, JournalError
from shoal.core.job import JobSpec
from shoal.core.retry import FIRST_RETRY
from shoal.core.topology import Locality, Node, Placement, Topology, topology_of
from shoal.core.units import Seconds
from shoal.engine.replay import Scheduler, fold
from shoal.engine.state_image import UnreadableBase
from shoal.live.accounts import Accounts
from shoal.live.admission import MAX_GRACE, Admission
from shoal.live.backend import LEASE, LiveBackend
from shoal.live.clock import WallClock
from shoal.live.compaction import KEEP, Compaction
from shoal.live.control_plane import About, ControlPlane
from shoal.live.ended_jobs import EndedJobs
from shoal.live.journal_disk import WRITE_ERRORS, JournalDisk, check_room
from shoal.live.live_image import restore_live
from shoal.perf.catalog import Catalog
from shoal.perf.profile import LinearProfile
from shoal.scenario.scenario import Scenario
from shoal.store.codec import Base, Record
from shoal.store.journal import JournalFile, SqliteJournal, last_settings, settings_of
from shoal.store.segments import recover, segments
from shoal.wire.files import replace_file

log = logging.getLogger(__name__)

JOURNAL, ENDED = "journal.sqlite", "ended.sqlite"

MOST_LIVE_NODES = 20_000
"""Most nodes of one control plane."""

_TOO_MANY = f"and a control plane serves at most {MOST_LIVE_NODES:,}: run several"

PASSABLE = 0o711
"""Mode of a home through which an agent on it lets the users of tenants pass."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a control plane; ``roots`` are the folders jobs may work in (empty: any folder)."""

    home: Path
    scenario: Scenario
    lease: Seconds = LEASE
    first_retry: Seconds = FIRST_RETRY
    roots: Sequence[str] = ()
    keep: Seconds = KEEP
    """Seconds for which ended jobs, their logs and archived segments are kept."""
    max_grace: Seconds = MAX_GRACE
    """Longest grace of a job."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.lease <= 3600:
            raise InputError("lease", self.lease, "must lie between 0.5 and 3600 seconds")
        if not 0 <= self.max_grace <= 3600:
            raise InputError("max-grace", self.max_grace, "must lie between 0 and 3600 seconds")
        nodes = len(self.scenario.cluster.nodes)
        if nodes > MOST_LIVE_NODES:
            raise InputError("cluster", self.scenario.cluster.describe(), f"has {nodes:,} nodes, {_TOO_MANY}")


def make_home(folder: Path) -> None:
    """Create a control plane's home and make it private; ``InputError`` if it cannot be written or its disk is full."""
    check_room(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if stat.S_IMODE(folder.stat().st_mode) != PASSABLE:
            folder.chmod(0o700)
        (folder / "lock").open("a").close()
    except OSError as error:
        hint = f"cannot be written: {error.strerror}; name a folder this user may write to"
        raise InputError("home", str(folder), hint) from error


@contextmanager
def open_control_plane(settings: Settings) -> Iterator[ControlPlane]:
    """Start a control plane; leaving the context stops its loop and closes its journal. One per home folder."""
    make_home(settings.home)
    with _locked(settings.home / "lock"):
        try:
            control_plane = _make_control_plane(settings)
        except WRITE_ERRORS as error:
            hint = f"cannot be written: {error}; free some space, or name another folder"
            raise InputError("home", str(settings.home), hint) from error
        control_plane.start()
        try:
            yield control_plane
        finally:
            control_plane.stop()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            hint = "another control plane runs here: stop it, or set SHOAL_HOME to another folder"
            raise InputError("home", str(path.parent), hint) from error
        yield


def _make_control_plane(settings: Settings) -> ControlPlane:
    path = settings.home / JOURNAL
    scenario = replace(settings.scenario, tolerate_policy_errors=True)
    file = JournalFile(path)
    resumed = path.exists()
    epoch = time.time()
    if resumed:
        recover(path)
        before = last_settings(file.raw())
        if file.cut is not None:
            hint = f"is damaged ({file.cut}): `shoal journal salvage {path}` saves what is whole"
            raise InputError("journal", str(path), hint)
        _epoch(settings_of(file.read), path)
        epoch = _epoch(before, path)
        scenario = replace(scenario, cluster=grown(Scenario.of_settings(before).cluster, scenario.cluster))
    present = settings.scenario.cluster
    cluster, speeds = scenario.cluster, scenario.speeds()
    scheduler, accounts = _folded(path, scenario) if resumed else (scenario.make_scheduler(), Accounts(cluster.nodes))
    scheduler.state.decide_by(scenario.settings("live"))
    last = max(scheduler.state.now, accounts.now)  # the accounts also count a restart without events
    clock = WallClock(epoch, last)
    epoch = clock.epoch
    header = {**scenario.settings("live"), "epoch": epoch, "lease": settings.lease, "opened": time.time()}
    if resumed:
        header["away"] = (last, clock.now())
        accounts.leave_out(*header["away"])
    ended = EndedJobs(settings.home / ENDED)
    ended.check(accounts.submitted)
    journal = SqliteJournal.resume(path, header) if resumed else SqliteJournal.begin(path, header)
    backend = LiveBackend(cluster, clock, _expected_rate(cluster, speeds), settings.lease, settings.first_retry)
    backend.store_key = _store_key(settings.home / "store.key")
    backend.resume(accounts.runs, scheduler.state.topology.down)
    retired = frozenset(i for i, node in enumerate(cluster.nodes) if node.name not in present.node_index)
    backend.retire(retired)
    if resumed:
        log.info("journal taken up again", extra={"records": file.records, "live": len(accounts.live)})
    about = About(__version__, scenario.policy, present.describe(), epoch, retired)
    admission = Admission(present, speeds, settings.roots, settings.max_grace)
    disk = JournalDisk(path)
    compaction = Compaction(journal, scheduler.state, accounts, backend, ended, epoch, settings.keep)
    return ControlPlane(scheduler, backend, journal, accounts, admission, about, disk, compaction, resumed=resumed)


def _folded(path: Path, scenario: Scenario) -> tuple[Scheduler, Accounts]:
    """Return the scheduler and the accounts after a journal: from its last segment's base on, if that can be read.

    Else the segments before it are read too, back to the last base that can be read.
    """
    files = segments(path)
    for first in range(len(files) - 1, -1, -1):
        scheduler, accounts = scenario.make_scheduler(), Accounts(scenario.cluster.nodes)
        try:
            for file in files[first:]:
                for record in JournalFile(file).read():
                    fold((record,), scheduler.state)
                    _fold_live(accounts, record)
        except UnreadableBase:
            if not first:
                raise
        else:
            return scheduler, accounts
    raise AssertionError


def _fold_live(accounts: Accounts, record: Record) -> None:
    if not isinstance(record, Base):
        accounts.fold(record)
    elif accounts.submitted:
        accounts.forget(accounts.ended())
    else:
        restore_live(accounts, record.live)


def _store_key(path: Path) -> bytes:
    """Return the key in a file, which is made if there is none: elastic jobs outlive a restart of the control plane."""
    if not path.exists():
        replace_file(path, secrets.token_bytes(32), mode=0o600)
    return path.read_bytes()


def _epoch(first: Mapping[str, Any], path: Path) -> float:
    epoch = first.get("epoch")
    if not isinstance(epoch, float):
        raise JournalError(f"{path}: the journal of a simulation; a live cluster needs a home of its own")
    return epoch


def grown(before: Topology, wanted: Topology) -> Topology:
    """Return the cluster of a journal with the new nodes added; its nodes that are not in the new cluster stay, down.

    The journal names nodes by index, so a node keeps its index, its kind and its GPUs for ever.
    """
    known = {node.name: node for node in before.nodes}
    new: list[Node] = []
    for node in wanted.nodes:
        old = known.get(node.name)
        if old is None:
            new.append(node)
        elif (old.kind, old.gpus) != (node.kind, node.gpus):
            given = f"{node.gpus} x {node.kind}"
            hint = f"is {old.gpus} x {old.kind} in this home's journal: give it another name, or begin a new home"
            raise InputError(f"node {node.name}", given, hint)
    prices = {t.name: t.price_per_hour for t in (*before.types, *wanted.types) if t.price_per_hour is not None}
    return topology_of((*before.nodes, *new), prices)


def _expected_rate(topology: Topology, speeds: Catalog) -> Callable[[JobSpec, Placement], float]:
    """Return a function for a job's rate on a placement, by the catalogue or in proportion to its GPUs."""

    def rate(spec: JobSpec, placement: Placement) -> float:
        if spec.model is None:
            return LinearProfile(spec.gpus).rate("", placement.gpus, Locality.SAME_NODE)
        kind = topology.kinds[topology.kind_of(placement)]
        return speeds.profile(spec.model).rate(kind, placement.gpus, topology.locality(placement), spec.batch_size)

    return rate
