"""What a job is told, and when: every decision leaves each live job a reason with numbers in it."""

from shoal.policy.registry import parse_policy
from shoal.testing.builders import simulate
from shoal.workload.files import read_workload

jobs = read_workload("docs/examples/jobs.csv").jobs

for policy in ("fifo", "srtf"):
    print(policy)
    for at, sentence in simulate(parse_policy(policy), jobs, "gpu:2x4").story("wide"):
        print(f"  t = {at:>6,.0f} s  {sentence}")
