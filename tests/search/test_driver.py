"""Apps on a real cluster of processes: trials that are halved by what they print, and trials cancelled on the way."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.app import Scenario
from shoal.core.topology import parse_cluster
from shoal.live import Settings
from shoal.search.api import Kill, Order, Phase, Searcher, Train, Trial
from shoal.search.driver import Driver, Leg
from shoal.search.halving import SuccessiveHalving
from shoal.serving import Address, LocalNodes, serving
from shoal.wire.client import Client
from shoal.wire.messages import AcctRow, Submission

TRAIN = """
import os, pathlib, sys, time
trial, until, seconds, folder = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
state = pathlib.Path(folder, f"trial-{trial}")
print("trained so far:", state.read_text() if state.exists() else "nothing", flush=True)
print(f"loss {trial / 10}", flush=True)
time.sleep(seconds)
state.write_text(str(until))
"""
"""The lower the number, the better the trial; each leg goes on where the last one ended."""


def _patiently() -> bool:
    time.sleep(0.05)
    return False


@contextmanager
def cluster(folder: Path, policy: str) -> Iterator[Client]:
    """Two nodes of two GPUs on this machine."""
    settings = Settings(folder / "home", Scenario(parse_cluster("gpu:2x2"), policy), roots=(str(folder),))
    settings.home.mkdir()
    with serving(settings, Address()) as made:
        local = LocalNodes.of(made, settings, None)
        client = Client(made.listening.url, made.admin_token)
        try:
            local.tend()
            while made.plane.cluster().up_gpus < 4:
                time.sleep(0.05)
            yield client
        finally:
            client.close()
            local.end(_patiently)


def search(
    folder: Path, searcher: Searcher, seconds: Sequence[float], policy: str
) -> tuple[list[Trial], dict[str, str]]:
    """What became of a search over trials whose legs take so many seconds each, and how each of its jobs ended."""
    (folder / "train.py").write_text(TRAIN)

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
        ended = client.get("/v1/acct", list[AcctRow])
    return driver.search.trials, {row.name: row.state for row in ended}


@pytest.mark.parametrize("policy", ["las", "themis"])
def test_eight_real_trials_are_halved_until_the_best_is_trained_to_its_end(tmp_path: Path, policy: str) -> None:
    trials, ended = search(tmp_path, SuccessiveHalving(), [0.05] * 8, policy)
    assert [trial.legs for trial in trials] == [4, 3, 2, 2, 1, 1, 1, 1]
    assert trials[0].heard[-1][0] == 1.0
    assert (tmp_path / "trial-0").read_text() == "1.0"
    assert Counter(ended.values()) == {"completed": 15}


@dataclass(frozen=True)
class Impatient:
    """Whoever has a loss above a half when it is looked at is given up."""

    marks: tuple[float, ...] = (0.01,)

    def orders(self, trials: Sequence[Trial]) -> Sequence[Order]:
        if not any(trial.until for trial in trials):
            return [Train(n, 1.0) for n in range(len(trials))]
        return [Kill(n) for n, trial in enumerate(trials) if trial.running and trial.heard and trial.loss > 0.5]

    def ahead(self, trials: Sequence[Trial]) -> tuple[Phase, ...]:
        return ()


def test_real_trials_are_cancelled_by_what_they_print_on_the_way(tmp_path: Path) -> None:
    # The last two would take minutes: that the search ends is because they were cancelled.
    trials, ended = search(tmp_path, Impatient(), [0.05] * 6 + [100.0, 100.0], "fifo")
    assert [n for n, trial in enumerate(trials) if trial.lost] == [6, 7]
    assert ended == {f"{n}-1": "cancelled" if n > 5 else "completed" for n in range(8)}
