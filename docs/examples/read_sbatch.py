"""What Shoal makes of an #SBATCH script: the fields of its job, and notes on what differs from Slurm."""

from pathlib import Path

from shoal.jobspec.job_file import read_jobs

found = read_jobs(Path("docs/examples/multinode.sh"), folder=Path("/home/you"), environ={"LR": "0.1"})
for job in found.jobs:
    print(f"{job.name}: {job.gpus} GPUs; on each node {job.cpus} CPUs and {(job.memory or 0) >> 30} GB of memory")
for note in found.notes:
    print(f"note: {note}")
