"""One trial of the fault test: jobs are submitted while things are killed and cut; then the promises are checked.

The seed fixes what is submitted and struck and when; how the processes interleave is the machine's to choose.
"""

import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.e2e.site import DEADLINE_SECONDS, Line, Site

from shoal.core.errors import ShoalError
from shoal.core.events import EventBatch, JobSubmitted
from shoal.scenario.replay import replay_file
from shoal.store.journal import JournalFile
from shoal.wire.client import Refused, Unreachable
from shoal.wire.messages import ClusterRow, JobRow, NodeRow, Submission, SubmissionBatch, Submitted

NODES, GPUS = 3, 2
LEASE_SECONDS, RETRY_SECONDS, GRACE_SECONDS = 1.5, 0.2, 0.5
POLICIES = ("fifo", "srtf", "max-min:quantum=1")
"""One that lets jobs be, one that stops some for others, one that gives them more and fewer GPUs as they run."""
OPTIONS = ["--lease", str(LEASE_SECONDS), "--retry", str(RETRY_SECONDS)]

JOB = Path(__file__).with_name("job.py")

VICTIMS = {
    "plane": 4,  # the control plane
    "ack": 3,  # the same, in the moment it has acknowledged a submission
    "agent": 4,
    "rank": 4,
    "keeper": 1,
    "machine": 2,  # an agent and its keepers together
    "pause": 1,  # an agent, stopped and continued
    "cut": 3,  # the connection of an agent
    "hold": 2,  # the same, where nothing is lost but all comes late
    "door": 2,  # the connection of those who submit
}
"""What is struck, and how often beside the others."""

SILENCES = ("pause", "cut", "hold")
"""After these a node lives and says nothing: only its lease tells that from death."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A job to be submitted, and perhaps withdrawn."""

    at: float
    name: str
    gpus: int
    seconds: float
    saving: float
    elastic: bool
    cancel_at: float | None

    def submission(self) -> Submission:
        """The same, as it is sent."""
        return Submission(
            command=[sys.executable, "-I", "-S", str(JOB), str(self.seconds), str(self.saving)],
            name=self.name,
            gpus=self.gpus,
            min_gpus=1 if self.elastic else None,
            max_gpus=4 if self.elastic else None,
            # More than it will do: what rank 0 says is done would count for ranks that are behind.
            work=self.seconds + 1.0,
            grace=GRACE_SECONDS,
            key=self.name,
            retries=4,
            preemptible="yes",
        )


@dataclass(frozen=True, slots=True)
class Strike:
    """Something to be killed or cut, and how long it stays so; ``which`` picks one of those there are."""

    at: float
    victim: str
    which: int
    lasts: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed stands for."""

    seed: int
    batch: bool
    wishes: tuple[Wish, ...]
    strikes: tuple[Strike, ...]

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """A few jobs, gangs over two nodes among them, and one to three strikes while they run."""
        chance = random.Random(seed)
        strikes = [_strike(chance) for _ in range(chance.randint(1, 3))]
        batch = chance.random() < 0.25
        # Where a silence outlasts the lease, jobs do too: what a lease is for is to end them.
        silent = any(strike.victim in SILENCES and strike.lasts > LEASE_SECONDS for strike in strikes)
        wishes = []
        for number in range(chance.randint(2, 5)):
            at = 0.0 if batch else chance.uniform(0.0, 0.8)
            seconds = round(chance.uniform(2.0, 3.0) if silent else chance.uniform(0.2, 1.0), 2)
            gpus = chance.choice((1, 1, 2, 3, 4))
            saving = GRACE_SECONDS * chance.choice((0.0, 0.0, 0.4, 0.8, 1.6))
            cancel_at = at + chance.uniform(0.0, 1.5) if chance.random() < 0.12 else None
            elastic = chance.random() < 0.5
            wishes.append(Wish(at, f"s{seed}.{number}", gpus, seconds, saving, elastic, cancel_at))
        return cls(seed, batch, tuple(wishes), tuple(sorted(strikes, key=lambda strike: strike.at)))


def _strike(chance: random.Random) -> Strike:
    victim = chance.choices([*VICTIMS], [*VICTIMS.values()])[0]
    longer = chance.random() < (0.3 if victim in SILENCES else 0.1)
    lasts = chance.uniform(1.0, 2.0) * (LEASE_SECONDS + GRACE_SECONDS) if longer else chance.uniform(0.0, 0.7)
    return Strike(chance.uniform(0.0, 0.6 if victim == "ack" else 1.5), victim, chance.randrange(1000), lasts)


@dataclass(slots=True)
class Trial:
    """A plan carried out on a cluster, and what came of it."""

    site: Site
    plan: Plan
    acknowledged: dict[str, str] = field(default_factory=dict)
    """By name of the job, the identifier the control plane gave."""
    withdrawn: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _broken: list[str] = field(default_factory=list)
    _nodes: dict[Strike, int] = field(default_factory=dict)
    _armed: threading.Event = field(default_factory=threading.Event)
    _acked: threading.Event = field(default_factory=threading.Event)
    """Whoever hears the next acknowledgement is to strike the control plane; has done so."""

    def run(self) -> None:
        """Carry it out; ``Violation`` tells the whole story where a promise was broken."""
        try:
            people = threading.Thread(target=self._ask)
            people.start()
            self._strike()
            self.site.mend()
            self._tell("all is mended")
            people.join()
            self._check_promises()
        except (Violation, ShoalError, OSError, sqlite3.Error) as error:
            raise Violation(self._story(error)) from error

    # ── people ────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self) -> None:
        """Submit and withdraw, each again and again until it is acknowledged."""
        with closing(self.site.client):  # the connection of this thread
            self._ask_all()

    def _ask_all(self) -> None:
        asked: list[tuple[float, Callable[[], None]]] = []
        wishes = self.plan.wishes
        groups = [wishes] if self.plan.batch else [(wish,) for wish in wishes]
        asked += [(group[0].at, partial(self._submit, group)) for group in groups]
        asked += [(wish.cancel_at, partial(self._cancel, wish)) for wish in wishes if wish.cancel_at]
        for at, ask in sorted(asked, key=lambda entry: entry[0]):
            self._sleep_until(at)
            try:
                self._insist(ask)
            except (ShoalError, AssertionError) as error:
                self._broken.append(str(error))
                return

    def _submit(self, group: tuple[Wish, ...]) -> None:
        if self.plan.batch:
            batch = SubmissionBatch([wish.submission() for wish in group])
            ids = self.site.client.post("/v1/jobs/batch", batch, Submitted).jobs
        else:
            ids = self.site.client.post("/v1/jobs", group[0].submission(), Submitted).jobs
        if self._armed.is_set():
            self.site.strike_plane()
            self._acked.set()
        self.acknowledged |= {wish.name: id for wish, id in zip(group, ids, strict=True)}
        self._tell(f"acknowledged: {', '.join(ids)}")

    def _cancel(self, wish: Wish) -> None:
        # What is asked may happen even where no answer comes.
        self.withdrawn.add(wish.name)
        self.site.client.call("DELETE", f"/v1/jobs/{self.acknowledged[wish.name]}", None, type(None))
        self._tell(f"withdrawn: {wish.name}")

    def _insist(self, ask: Callable[[], None]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                return ask()
            except (Unreachable, Refused) as error:
                if (isinstance(error, Refused) and error.status < 500) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    # ── strikes ───────────────────────────────────────────────────────────────────────────────────────────────

    def _strike(self) -> None:
        agenda: list[tuple[float, Callable[[], None]]] = []
        for strike in self.plan.strikes:
            agenda.append((strike.at, partial(self._hit, strike)))
            agenda.append((strike.at + strike.lasts, partial(self._mend, strike)))
        for at, act in sorted(agenda, key=lambda entry: entry[0]):
            self._sleep_until(at)
            act()

    def _hit(self, strike: Strike) -> None:
        site = self.site
        # Where something runs, if it does anywhere.
        nodes = [node for node in range(NODES) if site.keepers(node)] or [*range(NODES)]
        node = self._nodes[strike] = nodes[strike.which % len(nodes)]
        match strike.victim:
            case "plane":
                site.kill_plane()
            case "ack":
                self._armed.set()
                self._acked.wait(1.0)
                self._armed.clear()
                site.kill_plane()
            case "agent":
                site.kill_agent(node)
            case "rank":
                self._kill(strike, site.ranks())
            case "keeper":
                self._kill(strike, site.keepers(node))
            case "machine":
                # An agent and its keepers, before any of them can do something about it.
                keepers = site.keepers(node)
                site.signal_agent(node, signal.SIGSTOP)
                for pid in keepers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                site.kill_agent(node)
            case "cut":
                site.cables[node].cut()
            case "hold":
                site.cables[node].hold()
            case "pause":
                site.signal_agent(node, signal.SIGSTOP)
            case "door":
                site.door.cut()
        self._tell(f"struck: {strike.victim} ({strike.which}, node {node}) for {strike.lasts:.2f} s")

    def _kill(self, strike: Strike, pids: list[int]) -> None:
        if pids:
            with suppress(ProcessLookupError):
                os.kill(sorted(pids)[strike.which % len(pids)], signal.SIGKILL)

    def _mend(self, strike: Strike) -> None:
        site, node = self.site, self._nodes[strike]
        match strike.victim:
            case "plane" | "ack":
                site.start_plane()
            case "agent" | "machine":
                site.start_agent(node)
            case "cut" | "hold":
                site.cables[node].mend()
            case "pause":
                site.signal_agent(node, signal.SIGCONT)
            case "door":
                site.door.mend()
        self._tell(f"mended: {strike.victim}")

    # ── promises ──────────────────────────────────────────────────────────────────────────────────────────────

    def _check_promises(self) -> None:
        if self._broken:
            raise Violation(self._broken[0])
        rows = self._wait(self._all_ended, "every job ends")
        self._wait(self._all_free, "every node is up, with all its GPUs free and nothing kept of any run")
        self._wait(lambda: not self.site.ranks(), "no process of a job is left")
        self._wait(self._quiet, "nobody has ended unasked")
        for wish in self.plan.wishes:
            self._check_job(wish, rows[wish.name])
        self._check_journal()

    def _wait(self, condition: Callable[[], object], what: str) -> dict[str, JobRow]:
        """The first true value of a condition; where it stays false, the promise it stands for is broken."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            with suppress(Unreachable):
                if value := condition():
                    return value if isinstance(value, dict) else {}
            if self._broken or time.monotonic() > deadline:
                raise Violation(self._broken[0] if self._broken else f"never came true: {what}")
            time.sleep(0.05)

    def _all_ended(self) -> dict[str, JobRow]:
        rows = self.site.client.get("/v1/jobs?all=true", list[JobRow])
        ours = [row for row in rows if row.name in {wish.name for wish in self.plan.wishes}]
        found = {row.name: row for row in ours}
        if len(found) < len(ours):
            raise Violation(f"one key, several jobs: {sorted(row.id for row in ours)}")
        missing = [id for name, id in self.acknowledged.items() if name not in found or found[name].id != id]
        if missing:
            raise Violation(f"acknowledged and not there: {missing}")
        return found if all(row.ended is not None for row in ours) else {}

    def _all_free(self) -> bool:
        rows = self.site.client.get("/v1/nodes", list[NodeRow])
        return all(row.up and not row.used and not row.jobs for row in rows) and not self.site.runs()

    def _quiet(self) -> bool:
        if failed := self.site.failed():
            raise Violation(f"ended though nobody killed it: {failed}")
        return True

    def _check_job(self, wish: Wish, row: JobRow) -> None:
        story = self.site.story(row.id)
        allowed = {"completed", "cancelled"} if wish.name in self.withdrawn else {"completed"}
        if row.state not in allowed:
            raise Violation(f"{row.id} is {row.state}: {row.reason}")
        if any(line.what == "twice" for line in story):
            raise Violation(f"{row.id} ran twice at once: {story}")
        last: list[Line] = []
        for incarnation in sorted({line.incarnation for line in story}):
            lines = [line for line in story if line.incarnation == incarnation]
            if last and min(line.at for line in lines) < max(line.at for line in last):
                raise Violation(f"{row.id}: run {incarnation} began before the one before it was over: {story}")
            last = lines
        done = {line.rank for line in last if line.what == "done"}
        if row.state == "completed" and (not last or len(done) < last[0].world):
            raise Violation(f"{row.id} counts as completed, but of its last run only ranks {sorted(done)} are: {story}")

    def _check_journal(self) -> None:
        copy = self.site.folder / "copy.sqlite"
        copy.unlink(missing_ok=True)
        source = f"{(self.site.home / 'journal.sqlite').as_uri()}?mode=ro"
        before = self.site.client.get("/v1/cluster", ClusterRow).decisions
        with closing(sqlite3.connect(source, uri=True)) as live, closing(sqlite3.connect(copy)) as kept:
            live.backup(kept)
        after = self.site.client.get("/v1/cluster", ClusterRow).decisions
        replayed, _, _ = replay_file(copy)
        if not before <= replayed.decisions <= after:
            raise Violation(f"{before} to {after} decisions were made, the journal has {replayed.decisions}")
        records = JournalFile(copy).read()
        events = [event for record in records if isinstance(record, EventBatch) for event in record.events]
        launches = [event.launch for event in events if isinstance(event, JobSubmitted)]
        keys = [launch.key for launch in launches if launch is not None and launch.key]
        if len(keys) != len(set(keys)):
            raise Violation(f"a key is in the journal twice: {keys}")

    # ── telling ───────────────────────────────────────────────────────────────────────────────────────────────

    def _sleep_until(self, at: float) -> None:
        time.sleep(max(0.0, self._began + at - time.monotonic()))

    def _tell(self, what: str) -> None:
        self.told.append(f"{time.monotonic() - self._began:7.3f}  {what}")

    def _story(self, error: Exception) -> str:
        plan = [*map(str, self.plan.wishes), *map(str, self.plan.strikes)]
        rows: list[str] = []
        with suppress(ShoalError):
            found = self.site.client.get("/v1/jobs?all=true", list[JobRow])
            rows = [str(row) for row in found if row.id in self.acknowledged.values()]
            rows += map(str, self.site.client.get("/v1/nodes", list[NodeRow]))
        again = f"python -m tests.e2e.soak --seed {self.plan.seed}"
        parts = (f"seed {self.plan.seed}: {error}", f"again: {again}", "plan:", *plan, "story:", *self.told, *rows)
        left = [f"ranks left: {self.site.ranks()}", f"runs kept: {self.site.runs()}", f"all is in {self.site.folder}"]
        return "\n  ".join([*parts, *left])


def ready(site: Site) -> None:
    """Wait until every node of a cluster is up."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with suppress(Unreachable):
            if all(row.up for row in site.client.get("/v1/nodes", list[NodeRow])):
                return
        time.sleep(0.05)
    raise Violation(f"the cluster never came up; its logs are in {site.folder}")
