"""An app of four trials is halved on four GPUs: the jobs it submits, and how it fared."""

from shoal.core.topology import parse_cluster
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.files import read_workload

workload = read_workload("docs/examples/sweep.jsonl")
outcome = run(Scenario(parse_cluster("gpu:1x4"), "fifo"), workload)
for job in outcome.jobs.rows():
    print(f"{job['id']:10} {job['gpus']} GPUs, from {job['submitted']:5,.0f} to {job['completed']:5,.0f} s")
apps = outcome.summary["apps"]
print(f"{apps['completed']} app in {apps['avg_seconds']:,.0f} s, ρ = {apps['rho']['max']:.2f}")
