"""Altruistic shortest first: gangs as asked for, and what is left to those who run."""

import pytest
from hypothesis import given, settings

from shoal.core.decision import Verdicts
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.policy.classic.shortest import Srsf, Srtf
from shoal.policy.elastic.altruistic import SrsfE, SrtfE
from shoal.testing import strategies
from shoal.testing.builders import job, simulate, snapshot


def test_what_is_left_goes_to_the_running_job_that_speeds_up_most() -> None:
    # Of 16 GPUs both gangs take 2. A chatbot's third and fourth GPU add little; a transformer's add nearly one each.
    bot = job("bot", 0, 2, work=100.0, min_gpus=1, max_gpus=4, model="afs-chatbot")
    text = job("text", 0, 2, work=900.0, min_gpus=1, max_gpus=44, model="afs-transformer")
    moment = snapshot([bot, text], "gtx1080:4x4")
    verdicts = SrtfE().decide(moment).verdicts
    assert Verdicts.of(moment, verdicts).gpus.tolist() == [2, 14]
    # 9.039, 9.452 and 9.835 times one GPU on 13, 14 and 15.
    assert verdicts["text"].reason.sentence() == (
        "runs on 14 GPUs: the last made it 4.564% faster, one more would make it 4.05%"
    )


def test_a_waiting_gang_gets_nothing_of_what_is_left() -> None:
    rows = [job("short", 0, 3, 10, min_gpus=1, max_gpus=4), job("long", 0, 3, 50, min_gpus=1, max_gpus=4)]
    run = simulate(SrtfE(), rows, "gpu:1x4")
    # The first runs on its 3 and the one left over, 7.5 s; then the second does, 37.5 s.
    assert run.completed == {"short": pytest.approx(7.5), "long": pytest.approx(45.0)}


@pytest.mark.parametrize(("altruistic", "plain"), [(SrtfE(), Srtf()), (SrsfE(), Srsf())], ids=["srtf-e", "srsf-e"])
@settings(max_examples=40, deadline=None)
@given(moment=strategies.snapshots())
def test_the_same_jobs_run_as_without_and_none_has_less(altruistic: Policy, plain: Policy, moment: Snapshot) -> None:
    more, asked = (Verdicts.of(moment, p.decide(moment).verdicts).gpus for p in (altruistic, plain))
    assert ((more > 0) == (asked > 0)).all()
    assert (more >= asked).all()
