"""``sbatch``, ``squeue``, ``scancel`` and ``sacct`` inside a batch script: ``shoal`` commands with the job's token.

A job has no token unless its owner gave it one, so that a program in a job cannot act for its owner unasked.
"""

import os
import sys

_COMMANDS = {"sbatch": "sbatch", "squeue": "queue", "scancel": "cancel", "sacct": "acct"}


def main(words: list[str]) -> int:
    """Execute the ``shoal`` command for a Slurm program, named by the first word after the interpreter."""
    python, program, *rest = words
    env = os.environ
    if not env.get("SHOAL_SERVER") or not (env.get("SHOAL_TOKEN_FILE") or env.get("SHOAL_TOKEN")):
        sys.stderr.write(
            f"{program}: error: this job has no token: submit it with "
            "`--export=ALL,SHOAL_SERVER,SHOAL_TOKEN_FILE` to let it act for you\n"
        )
        return 1
    if program == "scancel":
        rest = [env.get("SHOAL_JOB", "") if word == env.get("SLURM_JOB_ID") else word for word in rest]
        rest = [job for word in rest for job in word.split(":")]
    try:
        os.execv(python, [python, "-I", "-m", "shoal", _COMMANDS[program], *rest])
    except OSError as error:
        sys.stderr.write(f"{program}: error: cannot start {python}: {error.strerror}\n")
        return 1
