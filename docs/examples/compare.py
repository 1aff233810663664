"""Policies on the same jobs, from Python: what `shoal simulate` does, without the command line."""

from shoal.core.interfaces import Policy
from shoal.core.topology import parse_cluster
from shoal.policy.classic.fifo import Fifo
from shoal.policy.classic.shortest import Srtf
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.files import read_workload

workload = read_workload("docs/examples/jobs.csv")
cluster = parse_cluster("gpu:2x4")
policies: dict[str, Policy] = {"fifo": Fifo(), "with backfill": Fifo(backfill=True), "srtf": Srtf()}

for name, policy in policies.items():
    outcome = run(Scenario(cluster, name, restart_cost="0"), workload, policy=policy)
    summary = outcome.summary
    print(f"{name:<13}  average JCT {summary['avg_jct']:>7,.0f} s   makespan {summary['makespan']:>7,.0f} s")
    last = max(outcome.jobs.rows(), key=lambda row: row["jct"])
    print(f"{'':<13}  longest: {last['id']}, {last['jct']:,.0f} s, of which {last['queueing']:,.0f} s in the queue")
