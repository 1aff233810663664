"""A test by hand: two jobs on four GPUs, worked out on paper and then asked of the simulator."""

from shoal.policy.classic.fifo import Fifo
from shoal.policy.classic.shortest import Srtf
from shoal.testing.builders import job, simulate

jobs = [job("a", submitted=0, gpus=4, seconds=100), job("b", submitted=10, gpus=2, seconds=50)]

# First come, first served: b waits until a is done.
run = simulate(Fifo(), jobs, "gpu:1x4")
assert run.completed == {"a": 100.0, "b": 150.0}

# Shortest first: at t = 10 a has 90 s to go and b only 50, so a is stopped and goes on at t = 60.
run = simulate(Srtf(), jobs, "gpu:1x4")
assert run.completed == {"b": 60.0, "a": 150.0}
assert run.starts == {"a": 2, "b": 1}

for at, sentence in run.story("a"):
    print(f"t = {at:>3g}: {sentence}")
