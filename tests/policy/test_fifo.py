"""First in, first out, by hand."""

import pytest

from shoal.core.decision import Grant
from shoal.policy.classic.fifo import Fifo
from shoal.testing.builders import job, simulate, snapshot

LINE = [job("a", 0, 2, 100), job("b", 0, 4, 50), job("c", 0, 1, 30)]


def test_the_head_of_the_line_blocks_until_it_fits() -> None:
    # a takes 2 of 4 GPUs until 100; b needs all 4, so it waits, and c behind it although 2 are free.
    # b runs 100–150, then c 150–180.
    run = simulate(Fifo(), LINE, "gpu:1x4")
    assert run.completed == {"a": 100.0, "b": 150.0, "c": 180.0}
    assert run.cycles[0].sentence("b") == "waits: needs 4 GPUs; 2 left when its turn comes"
    assert run.cycles[0].sentence("c") == "waits its turn: b is first and needs 4 GPUs, with 2 free"


def test_with_backfill_a_later_job_passes_a_head_that_does_not_fit() -> None:
    # c runs 0–30 in what a leaves; b is no later for it.
    run = simulate(Fifo(backfill=True), LINE, "gpu:1x4")
    assert run.completed == {"a": 100.0, "b": 150.0, "c": 30.0}
    assert (
        run.cycles[0].sentence("c") == "runs ahead of its turn: it fits in 1 GPU that the head of the line cannot use"
    )


def test_backfill_can_delay_the_head() -> None:
    # b could start at 100, but c, backfilled at 0, holds a GPU until 300.
    rows = [job("a", 0, 2, 100), job("b", 0, 4, 50), job("c", 0, 1, 300)]
    assert simulate(Fifo(backfill=True), rows, "gpu:1x4").completed == {"a": 100.0, "c": 300.0, "b": 350.0}


def test_no_job_is_preempted() -> None:
    rows = [job(f"j{i}", 7.0 * i, 1 + i % 4, 40.0 + i) for i in range(12)]
    for policy in (Fifo(), Fifo(backfill=True)):
        assert set(simulate(policy, rows, "gpu:1x4").starts.values()) == {1}


def test_a_job_larger_than_the_cluster_does_not_block_the_line() -> None:
    moment = snapshot([job("big", 0, 5), job("small", 0, 1)], "gpu:1x4")
    verdicts = Fifo().decide(moment).verdicts
    assert verdicts["big"].reason.sentence() == "cannot run: needs 5 GPUs of one kind; the most this cluster has is 4"
    assert verdicts["small"].reason.sentence() == "runs: it fits, 1 of 4 GPUs are in use"


@pytest.mark.parametrize("cluster", ["gpu:1x4", "gpu:1x4,cpu:1x1"])
def test_a_running_job_that_was_resized_keeps_its_gpus_until_others_have_left_enough(cluster: str) -> None:
    # a runs on 2 GPUs and was resized to 3; b holds the other 2, and c waits.
    moment = snapshot([job("a", 0, 3), job("b", 0, 2), job("c", 0, 4)], cluster, held={"a": 2, "b": 2})
    verdicts = Fifo().decide(moment).verdicts
    assert {name: verdict.gpus for name, verdict in verdicts.items() if isinstance(verdict, Grant)} == {"a": 2, "b": 2}
    alone = snapshot([job("a", 0, 3), job("c", 0, 4)], cluster, held={"a": 2})
    assert getattr(Fifo().decide(alone).verdicts["a"], "gpus", 0) == 3
