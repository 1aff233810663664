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
    if program == "sbatch":
        rest = _named(rest, env.get("SLURM_JOB_ID", ""), env.get("SHOAL_JOB", ""))
    try:
        os.execv(python, [python, "-I", "-m", "shoal", _COMMANDS[program], *rest])
    except OSError as error:
        sys.stderr.write(f"{program}: error: cannot start {python}: {error.strerror}\n")
        return 1


def _named(words: list[str], number: str, job: str) -> list[str]:
    """Return options of sbatch in which a dependency on this job names it by its id in Shoal."""
    found = []
    for i, word in enumerate(words):
        of_dependency = word.startswith(("--dependency=", "-d")) or words[i - 1 : i] in (["-d"], ["--dependency"])
        parts = [job if part == number else part for part in word.split(":")] if of_dependency else [word]
        found.append(":".join(parts))
    return found
