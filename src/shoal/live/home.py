"""Open a control plane on the journal in its home folder, which is created if there is none."""

import fcntl
import logging
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.core.errors import InputError, JournalError
from shoal.core.events import NodeJoined
from shoal.core.job import JobSpec
from shoal.core.retry import FIRST_RETRY
from shoal.core.topology import Locality, Node, Placement, Topology, topology_of
from shoal.core.units import Seconds
from shoal.engine.replay import Scheduler, fold
from shoal.engine.state_image import UnreadableBase, decode_image
from shoal.live.accounts import Accounts
from shoal.live.admission import MAX_GRACE, Admission
from shoal.live.backend import LEASE, LiveBackend
from shoal.live.clock import WallClock
from shoal.live.compaction import KEEP, Compaction
from shoal.live.control_plane import About, ControlPlane
from shoal.live.ended_jobs import EndedJobs
from shoal.live.journal_disk import WRITE_ERRORS, JournalDisk, check_room
from shoal.live.live_image import restore_live
from shoal.live.members import MOST_LIVE_NODES, TOO_MANY
from shoal.live.notice_targets import NoticeTargets
from shoal.perf.catalog import Catalog
from shoal.perf.profile import LinearProfile
from shoal.provider.protocol import Abilities
from shoal.scenario.scenario import Scenario
from shoal.store.codec import BASE, EVENT_TAGS, EVENTS, HEADER, Base, Record
from shoal.store.journal import JournalFile, SqliteJournal, settings_of
from shoal.store.segments import archived, recover, segments
from shoal.wire.files import replace_file

log = logging.getLogger(__name__)

JOURNAL, ENDED = "journal.sqlite", "ended.sqlite"
_JOINED = EVENT_TAGS[NodeJoined]

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
    history: Path | None = None
    """A file of earlier runs, from which lengths are predicted; it is imported into the journal once."""
    abilities: Abilities = field(default_factory=Abilities)
    """Abilities of the engine in whose allocations the jobs run."""
    notices: NoticeTargets = field(default_factory=NoticeTargets)
    """Where notices of the ends of jobs may be sent."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.lease <= 3600:
            raise InputError("lease", self.lease, "must lie between 0.5 and 3600 seconds")
        if not 0 <= self.max_grace <= 3600:
            raise InputError("max-grace", self.max_grace, "must lie between 0 and 3600 seconds")
        nodes = len(self.scenario.cluster.nodes)
        if nodes > MOST_LIVE_NODES:
            raise InputError("cluster", self.scenario.cluster.describe(), f"has {nodes:,} nodes, {TOO_MANY}")


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
    epoch, joined = time.time(), frozenset[str]()
    if resumed:
        recover(path)
        before, known, joined = _known_nodes(path, file)
        if file.cut is not None:
            hint = f"is damaged ({file.cut}): `shoal journal salvage {path}` saves what is whole"
            raise InputError("journal", str(path), hint)
        _epoch(settings_of(JournalFile(path).read), path)
        epoch = _epoch(before, path)
        scenario = replace(scenario, cluster=grown(known, scenario.cluster))
    present = settings.scenario.cluster
    cluster, speeds = scenario.cluster, scenario.speeds()
    scheduler, accounts = _folded(path, scenario) if resumed else (scenario.make_scheduler(), Accounts(cluster.nodes))
    state, history = scheduler.state, settings.history
    earlier = None if history is None else scenario.earlier_runs(history, 0.0, state)
    state.decide_by(scenario.settings("live"))
    clock = WallClock(epoch, last := max(state.now, accounts.now))  # accounts also count a restart without events
    epoch = clock.epoch
    header = {**scenario.settings("live"), "epoch": epoch, "lease": settings.lease, "opened": time.time()}
    header["joined"] = sorted(joined)
    if resumed:
        header["away"] = (last, clock.now())
        accounts.leave_out(*header["away"])
    ended = EndedJobs(settings.home / ENDED)
    ended.check(accounts.submitted)
    journal = SqliteJournal.resume(path, header) if resumed else SqliteJournal.begin(path, header)
    removed = scheduler.state.topology.removed
    backend = _make_backend(settings, cluster.without_for_good(removed), clock, speeds)
    backend.resume(accounts.runs, scheduler.state.topology.down)
    stays = joined.union(present.node_index)
    retired = frozenset(i for i, node in enumerate(cluster.nodes) if node.name not in stays)
    backend.retire(retired - removed)
    if earlier is not None and earlier.source not in state.lengths.sources:
        backend.record(replace(earlier, at=clock.now()))
    if resumed:
        log.info("journal taken up again", extra={"records": file.records, "live": len(accounts.live)})
    about = About(__version__, scenario.policy, present.describe(), epoch, retired)
    admission = Admission(
        present, speeds, settings.roots, settings.max_grace, settings.abilities, notices=settings.notices
    )
    disk = JournalDisk(path)
    compaction = Compaction(journal, scheduler.state, accounts, backend, ended, epoch, settings.keep)
    made = ControlPlane(scheduler, backend, journal, accounts, admission, about, disk, compaction, resumed=resumed)
    made.members.begin(present)
    return made


def _make_backend(settings: Settings, cluster: Topology, clock: WallClock, speeds: Catalog) -> LiveBackend:
    backend = LiveBackend(
        cluster,
        clock,
        _expected_rate(lambda: backend.topology, speeds),
        settings.lease,
        settings.first_retry,
        native=settings.abilities.native,
        home=settings.home,
    )
    backend.store_key = _store_key(settings.home / "store.key")
    return backend


def known_cluster(home: Path) -> Topology | None:
    """Return the nodes that the journal in a home names; None if it has none."""
    path = home / JOURNAL
    return _known_nodes(path, JournalFile(path))[1] if path.exists() else None


def _folded(path: Path, scenario: Scenario) -> tuple[Scheduler, Accounts]:
    """Return the scheduler and the accounts after a journal, from the base of its last segment if that is readable.

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
            accounts.decisions.number_to(scheduler.state.cycle)
            return scheduler, accounts
    raise AssertionError


def _fold_live(accounts: Accounts, record: Record) -> None:
    if not isinstance(record, Base):
        accounts.fold(record)
    elif accounts.submitted:
        accounts.forget(accounts.ended())
    else:
        restore_live(accounts, record.live)


def _known_nodes(path: Path, last: JournalFile) -> tuple[dict[str, Any], Topology, frozenset[str]]:
    """Return the settings of a journal's last header, all its nodes by index, and the names of those that joined.

    They are in its last segment if the base of that can be read, else also in those before.
    """
    files = [*map(JournalFile, archived(path)), last]
    for first in range(len(files) - 1, -1, -1):
        try:
            return _scan_nodes(record for file in files[first:] for record in file.raw())
        except UnreadableBase:
            if not first:
                raise
    raise AssertionError


def _scan_nodes(records: Iterable[Sequence[Any]]) -> tuple[dict[str, Any], Topology, frozenset[str]]:
    settings: dict[str, Any] | None = None
    nodes: list[Node] = []
    joined: set[str] = set()
    for record in records:
        if record[0] == HEADER:
            settings = record[2]
            nodes = list(Scenario.of_settings(record[2]).cluster.nodes)
            joined |= set(record[2].get("joined", ()))
        elif settings is None:
            break
        else:
            new = decode_image(record[1]).joined if record[0] == BASE else _joined(record)
            nodes += [node for node in new if node.name not in {known.name for known in nodes}]
            joined |= {node.name for node in new}
    if settings is None:
        raise JournalError("a journal must begin with its header")
    return settings, topology_of(nodes, settings["prices"]), frozenset(joined)


def _joined(record: Sequence[Any]) -> list[Node]:
    """Return the nodes that a raw record of events lets join; an empty list for other records."""
    return [Node(*event[3:]) for event in record[2] if event[0] == _JOINED] if record[0] == EVENTS else []


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


def _expected_rate(cluster: Callable[[], Topology], speeds: Catalog) -> Callable[[JobSpec, Placement], float]:
    """Return a function for a job's rate on a placement, by the catalogue or in proportion to its GPUs."""

    def rate(spec: JobSpec, placement: Placement) -> float:
        if spec.model is None:
            return LinearProfile(spec.gpus).rate("", placement.gpus, Locality.SAME_NODE)
        topology = cluster()
        kind = topology.kinds[topology.kind_of(placement)]
        return speeds.profile(spec.model).rate(kind, placement.gpus, topology.locality(placement), spec.batch_size)

    return rate
