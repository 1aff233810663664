"""Trials whose every view, journal record and event is the same when they are made again."""

from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace as replaced
from tests.dst import operators
from tests.dst.plan import Job
from tests.dst.test_short_trials import short
from tests.dst.trial import Trial, run_plan
from tests.recorded import assert_repeats

from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL
from shoal.store.journal import JournalFile
from shoal.store.segments import segments
from shoal.wire.messages import Dependency, Submission

SECONDS_BETWEEN_VIEWS = 3.0
SEEDS = (1, 5, 7, 10, 12, 15, 23)


class WatchedTrial(Trial):
    """A trial that notes every view of the control plane every few seconds, and its journal at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._due = 0.0
        before = self.plane.on_cycle

        def on_cycle(plane: ControlPlane) -> None:
            before(plane)
            if self.world.now >= self._due:
                self._due = self.world.now + SECONDS_BETWEEN_VIEWS
                self._note_views(plane)

        self.plane.on_cycle = on_cycle

    def wanted(self, job: Job) -> Submission:
        """Use what a submission can declare beside GPUs, in turn; a job that is held is released before the repair."""
        number, earlier = list(self.plan.jobs).index(job) if job in self.plan.jobs else 0, [*self.acknowledged.values()]
        declared: list[dict[str, Any]] = [
            {"priority": 2, "weight": 2.0, "deadline": 100.0},
            {"hold": True, "preemptible": "no", "time": 500.0},
            {"after": [Dependency(earlier[-1], "any")] if earlier else None, "app": "search", "preemptible": "yes"},
            {"begin": 1.0e9 + job.at + 3.0, "cpus": 2, "memory": 2**30},
            {"array": "grid", "most_at_once": 1, "env": {"A": "b"}},
            {"singleton": True, "preemptible": "yes", "priority": -1},
        ]
        return replaced(super().wanted(job), **declared[number % 6])

    def run(self) -> None:
        for at, verb, job in ((15.0, "prioritise", 0), (20.0, "requeue", 0), (25.0, "hold", 2), (35.0, "requeue", 3)):
            self.world.after(at, self._ask, verb, job)
        for at in range(10, 80, 10):
            self.world.after(float(at), self._release)
        super().run()
        plane = self.plane.control_plane
        assert plane is not None
        self._note_views(plane)
        for path in segments(self.plane.folder / JOURNAL):
            for record in JournalFile(path).read():
                self._note("journal", record)

    def _ask(self, verb: str, job: int) -> None:
        id = [*self.acknowledged.values()][job : job + 1]
        more = (5,) if verb == "prioritise" else ()
        if id:
            operators.repeat(self, f"{verb} {id}", lambda plane: getattr(plane.verbs, verb)(id[0], *more, None, "root"))

    def _release(self) -> None:
        for id in self.acknowledged.values():
            operators.repeat(self, f"release {id}", partial(_released, id))

    def _note_views(self, plane: ControlPlane) -> None:
        with self.world.acting(self.plane):
            self._note("cluster", plane.cluster())
            self._note("quotas", plane.quotas())
            self._note("figures", plane.figures())
            for tenant in (None, "ann"):
                self._note("jobs", plane.jobs(tenant, ended=True))
                self._note("nodes", plane.nodes(tenant))
                self._note("share", plane.share(tenant))
                self._note("acct", plane.acct(tenant))
                self._note("seats", plane.pages.seats(tenant))
                self._note("fairness", plane.pages.fairness(tenant))
                self._note("decisions", plane.pages.decisions(tenant))
            for id in self.acknowledged.values():
                self._note("job", plane.job(id, None))

    def _note(self, what: str, found: Any) -> None:
        self.world.note(what, repr(found).replace(str(self.folder), "FOLDER"))


def _released(id: str, plane: ControlPlane) -> "Future[None]":
    return plane.verbs.release(id, None, "root")


@pytest.mark.recorded
@pytest.mark.parametrize("seed", SEEDS)
def test_a_trial_repeats_exactly(seed: int) -> None:
    def record() -> list[str]:
        result = run_plan(short(seed), make=WatchedTrial)
        assert result.violation is None, result.violation
        return [*map(repr, result.trace), result.digest]

    assert_repeats(f"trial {seed}", record)
