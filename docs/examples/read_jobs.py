"""What Shoal makes of a job file and of an #SBATCH script; no cluster is needed to find out."""

from pathlib import Path

from shoal.jobspec.job_file import read_jobs

for file in ("docs/examples/job.yaml", "docs/examples/train.sh"):
    found = read_jobs(Path(file), folder=Path("/home/you"))
    print(file)
    for job in found.jobs:
        print(f"  {job.name}: {job.gpus} GPUs, {job.ranks} ranks, work {job.work}, tenant {job.tenant}")
        print(f"    {job.command}")
    for note in found.notes:
        print(f"  note: {note}")
