"""Policies and settings side by side, on jobs made in Python."""

import shoal

jobs = [
    shoal.Job(id=f"job-{i}", submitted=300.0 * i, gpus=4 if i % 5 == 0 else 1, work=7200.0 if i % 5 == 0 else 1800.0)
    for i in range(40)
]
cluster = shoal.parse_cluster("gpu:1x8")

for policy in ("fifo", "las", "srtf"):
    for knowledge in ("profiled", "oracle"):
        summary = shoal.simulate(policy, jobs, cluster, knowledge=knowledge, noise=0.3, seed=1).summary
        unfair = summary["rho"]["isolated"]["unfair_1.0"]
        print(f"{policy:<5} {knowledge:<9} {summary['avg_jct'] / 60:6.1f} min, {unfair:4.0%} of jobs with rho > 1")
