"""The GPUs that an engine is asked for, by what jobs report of their goodput."""

from dataclasses import replace

import pytest

from shoal.core.decision import Verdicts
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchSetting
from shoal.live.growth import wished_gpus
from shoal.live.views import LastDecision
from shoal.policy.pollux.policy import Pollux
from shoal.testing.builders import job, snapshot


def report(network: float) -> GoodputReport:
    near, far = (0.005, 0.00005), (network, network / 100)
    fit = StepFit((0.02, 0.002), near, far, far, 2.0, 256, gpus=4)
    return GoodputReport((("t4", fit),), 1e6, 128, 4, BatchSetting(128))


@pytest.mark.parametrize(("network", "asked"), [(0.05, {"t4": 4}), (50.0, {})])
def test_a_job_that_would_train_well_on_more_nodes_wishes_for_them(network: float, asked: dict[str, int]) -> None:
    one = job(
        "a", 0.0, 1, work=5e6, min_gpus=1, max_gpus=64, model="cifar10", batch_size=128, limits=(128, 4096, 32, 1024)
    )
    seen = snapshot([one], "t4:1x4", knowledge="online", now=3600.0)
    seen = replace(seen, reports={seen.register.numbers["a"]: report(network)})
    verdicts = Verdicts.of(seen, Pollux().decide(seen).verdicts)
    assert verdicts.gpus.tolist() == [4]
    assert wished_gpus(LastDecision(seen, verdicts)) == asked
