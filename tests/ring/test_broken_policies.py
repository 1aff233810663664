"""A policy that fails or breaks its contract gets one clear line that names it, and the job where there is one."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from tests.refusals import refusal

from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.errors import InputError, PolicyError
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.engine.loop import judge_or_keep
from shoal.engine.moves import StopStartPlanner
from shoal.placement.packed import PackedPlacer
from shoal.testing.builders import job, simulate, snapshot

Shoal = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class Mine:
    """A policy that answers whatever a test gives it."""

    answer: Callable[[Snapshot], Any]

    def decide(self, snapshot: Snapshot) -> Decision:
        answer: Decision = self.answer(snapshot)
        return answer


def each(verdict: Any, review_at: Any = inf) -> Callable[[Snapshot], Decision]:
    return lambda snapshot: Decision(dict.fromkeys(snapshot.ids, verdict), review_at)


def _columns(gpus: int, length: int | None = None) -> Callable[[Snapshot], Decision]:
    def answer(snapshot: Snapshot) -> Decision:
        count = len(snapshot.ids) if length is None else length
        granted, codes = np.full(count, gpus, dtype=np.int32), np.zeros(count, dtype=np.uint8)
        return Decision(Verdicts(snapshot, gpus=granted, codes=codes))

    return answer


FAULTS: dict[str, tuple[Callable[[Snapshot], Any], str]] = {
    "answers nothing": (lambda _: None, "decide returned None; it must return a Decision"),
    "answers a dict": (
        lambda s: dict.fromkeys(s.ids, Grant(1)),
        "decide returned {'a': Grant(gpus=1, kind=None, shared_with=None, batch=None,… (a dict); it must "
        "return a Decision",
    ),
    "forgets a job": (lambda _: Decision({}), "the policy gave no verdict for live job 'a'"),
    "names a job that is not there": (
        lambda s: Decision({**dict.fromkeys(s.ids, Refusal()), "ghost": Grant(1)}),
        "the policy gave a verdict for 'ghost', which is not a live job",
    ),
    "gives verdicts in a list": (
        lambda _: Decision([Grant(1)]),  # type: ignore[arg-type]
        "the verdicts are [Grant(gpus=1, kind=None, shared_with=None, batch=None, plac… (a list); they must "
        "be a mapping by job",
    ),
    "gives no verdicts": (lambda _: Decision(None), "the verdicts are None; they must be a mapping by job"),  # type: ignore[arg-type]
    "gives None as a verdict": (each(None), "the verdict for job 'a' is None; it must be a Grant or a Refusal"),
    "gives a number as a verdict": (each(2), "the verdict for job 'a' is 2 (a int); it must be a Grant or a Refusal"),
    "gives a text as the reason": (
        each(Refusal("later")),  # type: ignore[arg-type]
        "the reason for job 'a' is 'later' (a str); it must be a Reason",
    ),
    "grants half a GPU": (each(Grant(0.5)), "job 'a' is granted 0.5 (a float) GPUs; it must be a whole number"),  # type: ignore[arg-type]
    "grants fewer than none": (each(Grant(-1)), "job 'a' is granted -1 GPUs"),
    "grants fewer than none by column": (_columns(-2), "job 'a' is granted -2 GPUs"),
    "answers for too few jobs by column": (
        _columns(1, length=0),
        "a policy must answer for each of the 1 live jobs; a column has another length",
    ),
    "grants a kind that is not there": (
        each(Grant(1, kind="tpu")),
        "the policy granted 'tpu'; the cluster has ('gpu',)",
    ),
    "shares with a stranger": (
        each(Grant(1, shared_with="nobody")),
        "the policy granted GPUs shared with 'nobody', which is not a live job",
    ),
    "shares a job with itself": (each(Grant(1, shared_with="a")), "job 'a' is granted GPUs shared with itself"),
    "pins a job to a node that is not there": (
        each(Grant(1, placement=Placement(((1, 1),)))),
        "job 'a' is granted 1 GPUs on seats Placement(seats=((1, 1),)) (a Placement), which cannot be",
    ),
    "pins a job to a negative node": (
        each(Grant(1, placement=Placement(((-1, 1),)))),
        "job 'a' is granted 1 GPUs on seats Placement(seats=((-1, 1),)) (a Placement), which cannot be",
    ),
    "pins a job to more seats than it grants": (
        each(Grant(1, placement=Placement(((0, 2),)))),
        "job 'a' is granted 1 GPUs on seats Placement(seats=((0, 2),)) (a Placement), which cannot be",
    ),
    "pins a job to a name": (
        each(Grant(1, placement="gpu-0")),  # type: ignore[arg-type]
        "job 'a' is granted 1 GPUs on seats 'gpu-0' (a str), which cannot be",
    ),
    "reviews at once": (each(Grant(1), 0.0), "a review at t = 0.0 is not after t = 0.0, when it was decided"),
    "reviews in the past": (each(Grant(1), -5.0), "a review at t = -5.0 is not after t = 0.0, when it was decided"),
    "reviews at no time": (each(Grant(1), nan), "a review at t = nan is not after t = 0.0, when it was decided"),
    "reviews at a numpy number": (
        each(Grant(1), np.float64(50.0)),
        "review_at is np.float64(50.0) (a float64); it must be a plain number of seconds, such as float(…)",
    ),
    "reviews at a text": (
        each(Grant(1), "soon"),
        "review_at is 'soon' (a str); it must be a plain number of seconds, such as float(…)",
    ),
    "reviews at None": (
        each(Grant(1), None),
        "review_at is None; it must be a plain number of seconds, such as float(…)",
    ),
}


@pytest.mark.parametrize(("answer", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_one_line_that_names_the_policy(answer: Callable[[Snapshot], Any], said: str) -> None:
    with refusal(f"policy Mine: {said}", PolicyError):
        simulate(Mine(answer), [job("a")], "gpu:1x4")


def test_a_policy_that_raises_is_named_with_the_time_and_the_line() -> None:
    def fails(_: Snapshot) -> Decision:
        raise ValueError("no\nluck")

    said = r"^policy Mine failed at t = 7 s: ValueError: no\nluck \(test_broken_policies.py, line \d+\)$"
    with pytest.raises(PolicyError, match=said) as caught:
        simulate(Mine(fails), [job("a", submitted=7)])
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_of_shoal_itself_passes_through_a_policy_unchanged() -> None:
    def fails(_: Snapshot) -> Decision:
        raise InputError("throughputs", "x.json", "no such file")

    with pytest.raises(InputError, match=r"^throughputs: 'x.json': no such file$"):
        simulate(Mine(fails), [job("a")])


GOOD: dict[str, Callable[[Snapshot], Decision]] = {
    "a whole number as review time": each(Grant(1), 50),
    "a numpy number of GPUs": each(Grant(np.int64(1))),  # type: ignore[arg-type]
    "columns": _columns(1),
    "seats on the last node": each(Grant(1, placement=Placement(((0, 1),)))),
}


@pytest.mark.parametrize("answer", GOOD.values(), ids=GOOD.keys())
def test_what_a_policy_may_answer(answer: Callable[[Snapshot], Decision]) -> None:
    assert simulate(Mine(answer), [job("a", seconds=10.0)], "gpu:1x4").completed == {"a": 10.0}


def test_where_the_policy_fails_a_live_cluster_keeps_every_job_and_tries_again_after_a_minute() -> None:
    rows = [job("runs", gpus=2), job("guest", gpus=2), job("alone", gpus=1), job("waits", gpus=4)]
    moment = snapshot(rows, "gpu:1x4", held={"runs": 2, "alone": 1}, sharing={"guest": "runs"}, now=100.0, carry="kept")

    def fails(_: Snapshot) -> Decision:
        raise ZeroDivisionError("division by zero")

    judged = judge_or_keep(moment, Mine(fails), PackedPlacer(), StopStartPlanner())
    assert (judged.commands, judged.decision.review_at, judged.decision.carry) == ((), 160.0, "kept")
    granted: dict[str, Verdict] = dict(judged.verdicts)
    why = "the policy failed (ZeroDivisionError: division by zero)"
    assert {name: verdict.reason.sentence() for name, verdict in granted.items()} == {
        "runs": f"keeps its GPUs: {why}",
        "guest": f"keeps its GPUs: {why}",
        "alone": f"keeps its GPUs: {why}",
        "waits": f"waits: {why}",
    }
    shared = {name: v.shared_with if isinstance(v, Grant) else "refused" for name, v in granted.items()}
    assert shared == {"runs": "guest", "guest": "runs", "alone": None, "waits": "refused"}


SCRIPTS: dict[str, tuple[str, str]] = {
    "raises": ("return Decision({job: Grant(1 // 0) for job in snapshot.ids})", "ZeroDivisionError: "),
    "a dict": ("return {job: Grant(1) for job in snapshot.ids}", "it must return a Decision"),
    "None": ("pass", "decide returned None"),
    "a numpy time": (
        "return Decision({j.id: Grant(j.gpus) for j in snapshot.jobs.values()}, np.float64(snapshot.now + 9.0))",
        "review_at is np.float64(",
    ),
    "incomplete": ("return Decision({})", "no verdict for live job 'demo-"),
}


@pytest.mark.parametrize(("body", "said"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_the_command_line_answers_a_broken_policy_with_one_line_and_exit_code_2(
    shoal: Shoal, body: str, said: str
) -> None:
    Path("mine.py").write_text(
        dedent(f"""
        import numpy as np
        from shoal.core.decision import Decision, Grant

        class Mine:
            def decide(self, snapshot):
                {body}
        """),
        encoding="utf-8",
    )
    world = ("--workload", "demo", "--jobs", "4", "--cluster", "v100:2x4", "--parallel", "1")
    code, out, err = shoal("simulate", *world, "--policy", "mine.py:Mine")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("shoal: policy Mine")
    assert said in line
