"""The whole verdicts where unsaved work keeps its seats: GPUs, kinds, partners, seats and sentences of every job."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.engine.unsaved_work import ask
from shoal.testing.builders import job, snapshot
from shoal.workload.schema import Job

KEEPS = "keeps its {}: a stop would lose its last 60 s of run"
RUNS, WAITS = "runs: the policy granted it these GPUs", "waits: the policy gave it no GPUs"


def script(name: str, at: float = 0.0, gpus: int = 1, **more: object) -> Job:
    """A job that never saves."""
    return job(name, at, gpus, 500, preemptible="auto", **more)


def seats(*pairs: tuple[int, int]) -> Placement:
    return Placement(pairs)


@dataclass(frozen=True)
class Wishes:
    """Gives these verdicts at the first question, ``rest`` at the second; refuses all other jobs."""

    verdicts: Mapping[str, Verdict]
    rest: Mapping[str, Verdict] | None = None

    def decide(self, snapshot: Snapshot) -> Decision:
        again = bool(snapshot.cluster.withheld)
        given = self.verdicts if not again or self.rest is None else self.rest
        verdicts = {name: given.get(name, Refusal()) for name in snapshot.ids}
        return Decision(verdicts, 500.0 if again else 900.0, ("again" if again else "once", len(snapshot.ids)))


def told(moment: Snapshot, verdicts: Verdicts) -> dict[str, str]:
    """Each verdict in words: GPUs, kind, partner and seats as the verdict has them, then its sentence."""
    found = {}
    for name in moment.ids:
        verdict = verdicts[name]
        what = ["0"]
        if isinstance(verdict, Grant):
            what = [f"{verdict.gpus}", verdict.kind or "", f"with {verdict.shared_with}" if verdict.shared_with else ""]
            what.append(str(verdict.placement.seats) if verdict.placement else "")
        found[name] = f"{' '.join(filter(None, what))}: {verdict.reason.sentence()}"
    return found


def columns(verdicts: Verdicts) -> tuple[object, ...]:
    """Kinds, partners, demands for one node and seats by position, as the placer reads them."""
    lists = (verdicts.kinds, verdicts.partners, verdicts.consolidated)
    return (*(None if found is None else found.tolist() for found in lists), dict(verdicts.placements))


@dataclass(frozen=True)
class Case:
    moment: Snapshot
    wishes: Mapping[str, Verdict]
    told: Mapping[str, str]
    columns: tuple[object, ...]


ON_BOTH = seats((0, 1), (1, 1))
PAIR: dict[str, Any] = {"held": {"host": 1}, "sharing": {"guest": "host"}}
HELD_ONE = "waits: needs 1 GPU; running jobs ({}) keep {}: stopping them would lose {} s of run"

CASES = {
    "a job that is to grow where there is room": Case(
        snapshot([script("a", 0, 1, min_gpus=1, max_gpus=2), job("b", 60)], "v100:1x4,k80:1x4", held={"a": 1}),
        {"a": Grant(2), "b": Grant(1)},
        {"a": f"1 v100 ((0, 1),): {KEEPS.format('1 GPU')}", "b": f"1: {RUNS}"},
        ([0, -1], None, None, {}),
    ),
    "a job that is to move to another kind": Case(
        snapshot([job("b"), script("a", 0, 2), job("c", 60)], "v100:1x4,k80:1x4", held={"a": seats((1, 2))}),
        {"a": Grant(2, kind="v100"), "b": Grant(1, kind="k80"), "c": Grant(1)},
        {"b": f"1 k80: {RUNS}", "a": f"2 k80 ((1, 2),): {KEEPS.format('2 GPUs')}", "c": f"1: {RUNS}"},
        ([1, 1, -1], [-1, -1, -1], None, {}),
    ),
    "a job that is to move to other seats, beside one that gets seats of the policy's choice": Case(
        snapshot([script("a"), job("b", 60)], "gpu:2x2", held={"a": seats((0, 1))}),
        {"a": Grant(1, placement=seats((1, 1))), "b": Grant(1, placement=seats((1, 1)))},
        {"a": f"1 gpu ((0, 1),): {KEEPS.format('1 GPU')}", "b": f"1 ((1, 1),): {RUNS}"},
        ([0, -1], [-1, -1], None, {1: seats((1, 1))}),
    ),
    "a job on two nodes that is to be on one": Case(
        snapshot([script("a", 0, 2), job("b", 60)], "gpu:2x2", held={"a": ON_BOTH}),
        {"a": Grant(2, consolidated=True), "b": Grant(1, consolidated=True)},
        {"a": f"2 gpu ((0, 1), (1, 1)): {KEEPS.format('2 GPUs')}", "b": f"1: {RUNS}"},
        ([0, -1], [-1, -1], [False, True], {0: ON_BOTH}),
    ),
    "a job that is to be on one node, and is": Case(
        snapshot([script("a", 0, 2), job("b", 60)], "gpu:2x2", held={"a": seats((0, 2))}),
        {"a": Grant(2, consolidated=True), "b": Grant(1)},
        {"a": f"2: {RUNS}", "b": f"1: {RUNS}"},
        ([-1, -1], [-1, -1], [True, False], {0: seats((0, 2))}),
    ),
    "a job whose owner lets nobody stop it": Case(
        snapshot([job("a", preemptible="no"), job("b", 60)], "gpu:1x2", held={"a": 1}),
        {"b": Grant(1)},
        {"a": "1 gpu ((0, 1),): keeps its 1 GPU: its owner declared that it must not be stopped", "b": f"1: {RUNS}"},
        ([0, -1], None, None, {}),
    ),
    "a job that another is to join on its GPUs": Case(
        snapshot([script("a"), job("b", 60)], "gpu:1x1", held={"a": 1}),
        {"a": Grant(1, shared_with="b"), "b": Grant(1)},
        {"a": f"1 with b: {RUNS}", "b": f"1: {RUNS}"},
        ([-1, -1], [1, 0], None, {}),
    ),
    "a job whose guest is to leave it": Case(
        snapshot([script("host"), job("guest", 1), job("new", 60)], "gpu:1x2", **PAIR),
        {"host": Grant(1), "guest": Grant(1)},
        {
            "host": f"1 gpu with guest ((0, 1),): {KEEPS.format('1 GPU')}",
            "guest": "1 gpu with host ((0, 1),): keeps its 1 GPU: a stop would lose its last 0 s of run",
            "new": f"0: {WAITS}",
        },
        ([0, 0, -1], [1, 0, -1], None, {}),
    ),
    "a guest that may not be stopped and whose host is to leave": Case(
        snapshot([job("host"), script("guest"), job("new", 60)], "gpu:1x2", **PAIR),
        {"guest": Grant(1), "new": Grant(1)},
        {
            "host": "1 gpu with guest ((0, 1),): keeps its 1 GPU: a stop would lose its last 0 s of run",
            "guest": f"1 gpu with host ((0, 1),): {KEEPS.format('1 GPU')}",
            "new": f"1: {RUNS}",
        },
        ([0, 0, -1], [1, 0, -1], None, {}),
    ),
    "a pair that stays as it is, beside a new pair": Case(
        snapshot([script("host"), job("guest", 1), job("c", 60), job("d", 60)], "gpu:1x2", **PAIR),
        {"host": Grant(1, shared_with="guest"), "guest": Grant(1), "c": Grant(1, shared_with="d"), "d": Grant(1)},
        {
            "host": f"1 with guest: {RUNS}", "guest": f"1: {RUNS}", "c": f"1 with d: {RUNS}", "d": f"1: {RUNS}",
        },
        ([-1, -1, -1, -1], [1, 0, 3, 2], None, {}),
    ),
    "a job that is to join one that is to move": Case(
        snapshot([script("a"), job("b", 60)], "v100:1x1,k80:1x1", held={"a": seats((1, 1))}),
        {"a": Grant(1, kind="v100", shared_with="b"), "b": Grant(1, kind="v100")},
        {"a": f"1 k80 ((1, 1),): {KEEPS.format('1 GPU')}", "b": "0: " + HELD_ONE.format(1, "1 GPU", 60)},
        ([1, 0], [-1, -1], None, {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_whole_verdicts_where_a_job_keeps_its_seats(case: Case) -> None:
    decision, verdicts = ask(Wishes(case.wishes), case.moment)
    assert told(case.moment, verdicts) == case.told
    assert columns(verdicts) == case.columns
    assert np.array_equal(verdicts.gpus, [int(text.split()[0].rstrip(":")) for text in case.told.values()])
    assert (decision.review_at, decision.carry) == (900.0, ("once", len(case.told)))


def test_a_second_question_has_the_earlier_review_and_what_the_policy_remembers_of_it() -> None:
    rows = [script("old"), job("wide", 60, 2), job("small", 60)]
    moment = snapshot(rows, "gpu:1x2", held={"old": 1})
    decision, verdicts = ask(Wishes({"wide": Grant(2)}, {"small": Grant(1)}), moment)
    assert told(moment, verdicts) == {
        "old": f"1 gpu ((0, 1),): {KEEPS.format('1 GPU')}",
        "wide": "0: waits: needs 2 GPUs; running jobs (1) keep 1 GPU: stopping them would lose 60 s of run",
        "small": f"1: {RUNS}",
    }
    assert decision.verdicts is verdicts
    assert (decision.review_at, decision.carry) == (500.0, ("again", 1))


@pytest.mark.parametrize(
    ("wish", "granted"),
    [
        ({"wide": Grant(3)}, {"old": 1, "wide": 3}),
        ({"wide": Grant(4)}, {"old": 1, "small": 1}),
        ({"wide": Grant(3), "small": Grant(1)}, {"old": 1, "wide": 3}),
        ({"running": Grant(2), "wide": Grant(3)}, {"old": 1, "running": 2}),
    ],
)
def test_grants_are_kept_while_they_all_fit_beside_it(wish: dict[str, Verdict], granted: dict[str, int]) -> None:
    rows = [script("old"), job("wide", 60, 3), job("small", 60), job("running", 60, 2)]
    held = {"old": 1, "running": 2} if "running" in wish else {"old": 1}
    moment = snapshot(rows, "gpu:1x4", held=held)
    rest = {"small": Grant(1)} if wish == {"wide": Grant(4)} else {"wide": Grant(3)}
    if "running" in wish:
        rest = {"running": Grant(2)}
    _, verdicts = ask(Wishes(wish, rest), moment)
    assert {name: n for name, n in zip(moment.ids, verdicts.gpus.tolist(), strict=True) if n} == granted
