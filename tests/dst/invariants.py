"""The invariants of a trial; ``docs/faults.md`` promises each of them."""

from typing import Any

from tests.dst.plan import LEASE, LONGEST_GRACE, MARGIN, MOST_BLAMED
from tests.dst.shims import SWITCH_PAUSE
from tests.dst.world import World

from shoal.core.events import EventBatch, JobSubmitted
from shoal.core.lifecycle import JobState
from shoal.live.accounts import Account, Accounts
from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL
from shoal.scenario.replay import replay_file
from shoal.store.journal import JournalFile
from shoal.store.segments import segments

RESTART = 2.0
"""Seconds after a fault until the control plane works again."""

LATENCY = 3.0
"""Seconds that starting a run and noticing its end may take without a fault, together."""

ONE_CYCLE = 10
"""Records of one cycle, at most."""


def check_seats(world: World, plane: ControlPlane) -> None:
    """After each cycle: the placements of live jobs fit on the nodes."""
    used: dict[int, int] = {}
    for account in plane.accounts.live.values():
        for node, gpus in account.placement.seats if account.placement is not None else ():
            used[node] = used.get(node, 0) + gpus
    for node, gpus in used.items():
        there = plane.backend.topology.nodes[node].gpus
        world.check(gpus <= there, f"{gpus} GPUs of node {node} are given out, and it has {there}")


def settled(trial: Any) -> bool:
    """Return whether every job has ended, no process is left and every node is up with nothing on it."""
    plane = trial.plane.control_plane
    if plane is None or len(trial.acknowledged) < len(trial.plan.jobs):
        return False
    if plane.accounts.live or any(node.ranks or node.keepers for node in trial.nodes):
        return False
    return all(node.agent is not None and not node.agent._state.runs for node in trial.nodes)


def check_settled(trial: Any) -> None:
    """Every job ends, and nothing of any run is left on any node."""
    world, plane = trial.world, trial.plane.control_plane
    world.check(plane is not None, "the control plane does not come back")
    missing = [job.name for job in trial.plan.jobs if job.name not in trial.acknowledged]
    world.check(not missing, f"never acknowledged: {missing}")
    live = [f"{a.spec.id} {a.state.name} {a.history[-1][1]}" for a in plane.accounts.live.values()]
    world.check(not live, f"jobs that never end: {live}")
    left = [f"{n.name}: {[*n.ranks]} {[*n.keepers]} {n.agent and list(n.agent._state.runs)}" for n in trial.nodes]
    world.check(settled(trial), f"left on the nodes: {left}")


def check_end(trial: Any) -> None:
    """After all repairs: nothing lost, outcomes true, GPUs free, accounts true, the journal replays."""
    world, plane = trial.world, trial.plane.control_plane
    world.check(plane is not None, "the control plane is not there")
    with world.acting(trial.plane):
        rows = {row.id: row for row in plane.jobs(None, ended=True)}
        nodes = plane.nodes(None)
        share = plane.share(None)
    for key, id in trial.acknowledged.items():
        world.check(id in rows, f"acknowledged and lost: {key} as {id}")
    for row in nodes:
        world.check(row.up and not row.used, f"node {row.name} is down or has GPUs in use at the end: {row}")
    accounts = all_accounts(plane)
    for account in accounts.values():
        _check_outcome(trial, account)
        _check_charge(trial, account)
    total = sum(account.gpu_seconds for account in accounts.values())
    shared = sum(row.gpu_seconds for row in share)
    world.check(abs(total - shared) < 1e-6 * max(1.0, total), f"tenants are charged {shared}, jobs {total}")
    _check_journal(trial, plane)


def all_accounts(plane: ControlPlane) -> dict[int, Account]:
    """Return the accounts of all jobs by number: those on disk and those in memory, which are the later ones."""
    return {account.number: account for account in plane.compaction.ended.accounts(None)} | plane.accounts.accounts


def _check_outcome(trial: Any, account: Any) -> None:
    world, id = trial.world, account.spec.id
    truth = trial.registry.jobs[id]
    world.check(not truth.live, f"{id} has ended and has live ranks")
    if account.state is JobState.COMPLETED:
        done = [incarnation for incarnation in truth.runs if truth.completed(incarnation)]
        world.check(bool(done), f"{id} counts as completed, but its runs ended {truth.runs} of {truth.worlds}")
    elif account.state is JobState.FAILED:
        enough = truth.blamed >= MOST_BLAMED or any(kind == "node.spawn" for _, _, kind in trial.windows)
        world.check(enough, f"{id} failed after {truth.blamed} faults of its own: {account.cause}")
    else:
        world.check(id in trial.cancelled, f"{id} is {account.state.name}, and nobody cancelled it")
    if id in trial.cancel_acknowledged and account.state is not JobState.CANCELLED:
        done = [incarnation for incarnation in truth.runs if truth.completed(incarnation)]
        world.check(bool(done) or account.state is JobState.FAILED, f"{id} was cancelled and is {account.state.name}")


def _check_charge(trial: Any, account: Any) -> None:
    """GPU-seconds charged equal those held, but for start and stop, and for faults while the job was placed."""
    truth = trial.registry.jobs[account.spec.id]
    gpus = max((placement.gpus for placement in account.placements.values()), default=0)
    begin, end = account.submitted, account.ended or trial.world.now
    if trial.plane.stepped > 1.0:  # the journal's time is not the world's
        begin, end = 0.0, trial.world.now
    unnoticed = LEASE + LONGEST_GRACE + MARGIN
    near = [w for w in trial.windows if w[0] < end and w[1] + unnoticed > begin]
    # While the control plane is away it cannot notice an end; then it waits for every node to report or be lost.
    away = [w for w in near if w[2].startswith(("plane", "disk"))]
    unseen = sum(max(0.0, min(until, end) - max(at, begin)) + RESTART for at, until, _ in away)
    each = LATENCY + account.launch.grace + (2 * unnoticed if near else 0.0)
    bound = gpus * (max(1, len(account.placements)) * each + unseen)
    wrong = abs(account.gpu_seconds - truth.held)
    trial.world.check(
        wrong <= bound,
        f"{account.spec.id} is charged {account.gpu_seconds:.1f} GPU-seconds, held {truth.held:.1f}, bound {bound:.1f}",
    )


def _check_journal(trial: Any, plane: ControlPlane) -> None:
    world, home = trial.world, trial.plane.folder
    try:
        replayed = replay_file(home)[0]
    except Exception as error:
        world.violate(f"the journal does not replay: {error!r}".replace(str(home.parent), ""))
        return
    made = plane.scheduler.state.cycle
    world.check(replayed.decisions == made, f"{made} decisions were made, the journal has {replayed.decisions}")
    accounts, keys = Accounts(plane.backend.topology.nodes), []
    for path in segments(home / JOURNAL):
        for record in JournalFile(path).read():
            accounts.fold(record)
            if isinstance(record, EventBatch):
                keys += [e.launch.key for e in record.events if isinstance(e, JobSubmitted) and e.launch is not None]
    world.check(len(keys) == len(set(keys)), f"a key is in the journal twice: {sorted(keys)}")
    # Each switch that failed, as on a full disk, is tried again after a pause, counted from the records of that time.
    longest = max(trial.plan.segment + SWITCH_PAUSE, plane.compaction._not_before) + ONE_CYCLE
    world.check(plane.journal.records <= longest, f"the last segment has {plane.journal.records} records")
    same = (accounts.quotas, accounts.restarts, accounts.crashes, accounts.completed) == (
        plane.accounts.quotas, plane.accounts.restarts, plane.accounts.crashes, plane.accounts.completed
    )  # fmt: skip
    world.check(same, "the journal's fold has other quotas or totals than the control plane")
    kept = all_accounts(plane)
    world.check(kept.keys() == accounts.accounts.keys(), f"the journal has other jobs than {sorted(kept)}")
    for ours, theirs in ((kept[number], account) for number, account in accounts.accounts.items()):
        same = (ours.state, round(ours.gpu_seconds, 6)) == (theirs.state, round(theirs.gpu_seconds, 6))
        world.check(same, f"{ours.spec.id}: the journal's fold gives {theirs}, the control plane has {ours}")
