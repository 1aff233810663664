"""``scontrol`` inside a batch script: host names, the job itself, and its requeueing."""

import json
import os
import signal
import sys

from shoal.agent.slurm.programs.step_layout import expand_hosts

_HINT = "this scontrol knows `show hostnames [LIST]`, `show hostlist LIST`, `show job` and `requeue`, for its own job"


def main(words: list[str]) -> int:
    """Run one command of scontrol; return the exit status."""
    words = [word for word in words if word not in ("-o", "--oneliner", "-d", "--details")]
    if words[:1] == ["show"] and len(words) >= 2:
        what, rest = words[1].lower(), words[2:]
        if what in ("hostnames", "hostname"):
            return _hostnames(rest)
        if what in ("hostlist", "hostlistsorted") and rest:
            print(",".join(expand_hosts(",".join(rest))))
            return 0
        if what in ("job", "jobs", "jobid"):
            return _show_job(rest)
    if words[:1] == ["requeue"]:
        return _requeue(words[1:])
    if words[:1] in (["hold"], ["release"], ["update"], ["suspend"], ["resume"]):
        return _fail(f"{words[0]}: use `shoal {words[0]}` where you are logged in; {_HINT}")
    return _fail(f"{' '.join(words) or 'no command'}: {_HINT}")


def _fail(text: str) -> int:
    sys.stderr.write(f"scontrol: error: {text}\n")
    return 1


def _hostnames(rest: list[str]) -> int:
    text = rest[0] if rest else os.environ.get("SLURM_JOB_NODELIST", "")
    if not text:
        return _fail("show hostnames: names no list, and SLURM_JOB_NODELIST is not set")
    try:
        print("\n".join(expand_hosts(text)))
    except ValueError as error:
        return _fail(str(error))
    return 0


def _own(rest: list[str], what: str) -> str | None:
    """Return a problem if a job other than this one is named."""
    env = os.environ
    mine = (env.get("SLURM_JOB_ID"), env.get("SHOAL_JOB"))
    array = f"{env.get('SLURM_ARRAY_JOB_ID')}_{env.get('SLURM_ARRAY_TASK_ID')}"
    named = rest[0].removeprefix("jobid=").removeprefix("JobId=") if rest else mine[0]
    return None if named in (*mine, array) else f"{what} {named}: is not this job, {mine[0]} ({mine[1]})"


def _show_job(rest: list[str]) -> int:
    if problem := _own(rest, "show job"):
        return _fail(problem)
    env = os.environ
    restarts = env.get("SLURM_RESTART_COUNT", "0")
    lines = (
        f"JobId={env.get('SLURM_JOB_ID')} JobName={env.get('SLURM_JOB_NAME', '')}",
        f"   UserId={env.get('SLURM_JOB_USER', '')} Account={env.get('SLURM_JOB_ACCOUNT', '')}",
        f"   ShoalJob={env.get('SHOAL_JOB')}",
        f"   JobState=RUNNING Requeue=1 Restarts={restarts} BatchFlag=1",
        f"   Partition={env.get('SLURM_JOB_PARTITION', '')} NodeList={env.get('SLURM_JOB_NODELIST', '')}",
        f"   NumNodes={env.get('SLURM_NNODES')} NumTasks={env.get('SLURM_NTASKS', env.get('SLURM_NNODES'))}",
        f"   BatchHost={env.get('SLURMD_NODENAME', '')} WorkDir={os.getcwd()}",
    )
    print("\n".join(lines))
    return 0


def _requeue(rest: list[str]) -> int:
    """Ask the batch script's parent to end it; its agent reports that the job asked for another start."""
    if problem := _own(rest, "requeue"):
        return _fail(f"{problem}; another job needs `shoal requeue` where you are logged in")
    step = json.loads(os.environ.get("SHOAL_STEP", "{}"))
    if "batch" not in step:
        return _fail("requeue: runs only on the job's first node")
    with open(os.path.join(step["folder"], "..", "requeue"), "wb"):
        pass
    os.kill(step["batch"], signal.SIGTERM)
    return 0
