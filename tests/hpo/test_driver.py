"""Apps on a real cluster of processes: trials that are halved by what they print, and trials cancelled on the way."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from shoal.hpo.halving import SuccessiveHalving
from shoal.hpo.live_search import Driver, Leg, last_loss
from shoal.hpo.search import Kill, Order, Searcher, SearchPhase, Train, Trial
from shoal.wire.client import Client, Unreachable
from shoal.wire.messages import AcctRow, JobRow, Submission, SubmissionBatch, Submitted
from shoal.wire.search_messages import SearchReport, SearchRow

if TYPE_CHECKING:
    from tests.hpo.conftest import Cluster


def search(
    cluster: "Cluster", folder: Path, searcher: Searcher, seconds: Sequence[float], policy: str
) -> tuple[list[Trial], dict[str, str], SearchReport]:
    """What became of a search over trials whose legs take so many seconds each, how its jobs ended, and its report."""

    def job(leg: Leg) -> Submission:
        words = [str(leg.trial), str(leg.until), str(seconds[leg.trial]), str(folder)]
        return Submission(
            command=[sys.executable, "-S", str(folder / "train.py"), *words],
            name=f"{leg.trial}-{leg.number}",
            app="sweep",
            gpus=min(leg.wider, 2),
            ranks="node",
            work=seconds[leg.trial],
            grace=0,
        )

    with cluster(folder, policy) as client:
        driver = Driver.of(client, searcher, len(seconds), job)
        driver.run(poll_seconds=0.1)
        for _ in range(200):  # killed trials end soon
            if not client.get("/v1/jobs", list[JobRow]):
                break
            time.sleep(0.05)
        ended = client.get("/v1/acct", list[AcctRow])
        (shown,) = client.get("/v1/searches", list[SearchRow])
    return driver.search.trials, {row.name: row.state for row in ended}, shown.report


def test_eight_real_trials_are_halved_until_the_best_is_trained_to_its_end(cluster: "Cluster", tmp_path: Path) -> None:
    trials, ended, shown = search(cluster, tmp_path, SuccessiveHalving(), [0.05] * 8, "las")
    assert [trial.legs for trial in trials] == [4, 3, 2, 2, 1, 1, 1, 1]
    assert trials[0].losses[-1][0] == 1.0
    assert (tmp_path / "trial-0").read_text() == "1.0"
    assert Counter(ended.values()) == {"completed": 15}
    assert (shown.over, shown.best) == (True, 0)
    assert [len(trial.jobs) for trial in shown.trials] == [4, 3, 2, 2, 1, 1, 1, 1]
    assert [trial.state for trial in shown.trials] == ["trained"] + ["given_up"] * 7
    assert shown.trials[0].losses == [tuple(loss) for loss in trials[0].losses]
    assert shown.trials[7].why.startswith("given up: others do better")


@dataclass(frozen=True)
class Impatient:
    """Whoever has a loss above a half when it is looked at is given up."""

    marks: tuple[float, ...] = (0.01,)

    def orders(self, trials: Sequence[Trial]) -> Sequence[Order]:
        if not any(trial.until for trial in trials):
            return [Train(n, 1.0) for n in range(len(trials))]
        return [Kill(n) for n, trial in enumerate(trials) if trial.running and trial.losses and trial.loss > 0.5]

    def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
        return ()


def test_real_trials_are_cancelled_by_what_they_print_on_the_way(cluster: "Cluster", tmp_path: Path) -> None:
    # The last two would take minutes: that the search ends is because they were cancelled.
    trials, ended, shown = search(cluster, tmp_path, Impatient(), [0.05] * 6 + [100.0, 100.0], "fifo")
    assert [n for n, trial in enumerate(trials) if trial.dropped] == [6, 7]
    assert [trial.trial for trial in shown.trials if trial.state == "given_up"] == [6, 7]
    assert ended == {f"{n}-1": "cancelled" if n > 5 else "completed" for n in range(8)}


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("epoch 1 loss 0.5\nepoch 2 loss: 0.25\ndone", 0.25),
        ("Loss=1e-3", 0.001),
        ("loss -2.", -2.0),
        ("loss .5 then loss nan", inf),
        ("loss inf", inf),
        ("the loss is unknown; lossless 3", None),
        ("", None),
    ],
)
def test_the_last_loss_counts_and_what_is_no_number_is_the_worst(text: str, loss: float | None) -> None:
    assert last_loss(text) == loss


class Unsteady:
    """A cluster that takes jobs in and loses its answer the first time."""

    def __init__(self) -> None:
        self.keys: list[list[str]] = []

    def post(self, path: str, body: SubmissionBatch, into: type[Any]) -> Submitted:
        self.keys.append([job.key for job in body.jobs])
        if len(self.keys) == 1:
            raise Unreachable("no answer")
        return Submitted([f"job-{n}" for n in range(len(body.jobs))])


def test_a_step_without_an_answer_is_repeated_without_starting_a_job_twice() -> None:
    unsteady = Unsteady()
    driver = Driver.of(cast(Client, unsteady), SuccessiveHalving(), 3, lambda leg: Submission(command=["train"]))
    with pytest.raises(Unreachable):
        driver.step()
    assert not driver.over
    driver.follow()
    first, again = unsteady.keys
    assert first == again
    assert len(set(first)) == 3
    assert driver.running == {0: "job-0", 1: "job-1", 2: "job-2"}
