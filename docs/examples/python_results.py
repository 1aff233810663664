"""What a simulation returns: a summary, a table of jobs, and the journal."""

import numpy as np

import shoal

result = shoal.simulate("srtf", "docs/examples/jobs.csv", "gpu:2x4", restart_cost="0")

print("columns are arrays:", np.round(result.jobs.jct / 60, 1), "minutes")
slowest = max(result.jobs.rows(), key=lambda job: job["jct"])
print(
    f"rows are dictionaries: {slowest['id']} waited {slowest['queueing']:,.0f} s, rho {slowest['rho']['isolated']:.2f}"
)

assert result.journal is not None
print("the journal has", sum(1 for _ in result.journal.read()), "records")
