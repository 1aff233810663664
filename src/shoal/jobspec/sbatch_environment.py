"""Variables and programs that a batch script uses: which to pass on from the shell, and which will be missing."""

import re
from collections.abc import Mapping

from shoal.core.errors import InputError
from shoal.jobspec.sbatch_options import Directive
from shoal.wire.batch_script import BatchOptions, batch_options

_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)(:?[-=?+])?")
_ASSIGNED = re.compile(r"^\s*(?:export\s+|declare\s+(?:-\w+\s+)*|readonly\s+)?([A-Za-z_]\w*)=(.*)$", re.MULTILINE)
_LOOPS = re.compile(r"\bfor\s+(\w+)\s+in\b|\bread\s+(?:-\w+\s+)*((?:\w+[ \t]*)+)")
_ABSENT = "sbcast|salloc|sattach|sinfo|sstat|sprio|sshare|sacctmgr|strigger|module|ml"
_CALL = re.compile(rf"(?:^|[;&|(`]|\bexec|\btime)\s*({_ABSENT})(?=\s|$)")

_OF_SHELL = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TERM", "LANG", "HOSTNAME", "SHLVL", "TMPDIR", "UID",
    "MASTER_ADDR", "MASTER_PORT", "EUID", "RANDOM", "SECONDS", "LINENO", "IFS", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV",
}  # fmt: skip
"""Variables that a shell or Shoal sets on the node."""
_OF_SYSTEM = ("SLURM", "SHOAL_", "SBATCH_", "LC_", "BASH", "CONDA_")
_MOST_VALUE = 4096

_SET = {
    f"SLURM_{name}"
    for name in (
        "JOB_ID", "JOBID", "NNODES", "JOB_NUM_NODES", "NODEID", "PROCID", "LOCALID", "NODELIST", "JOB_NODELIST",
        "GPUS_ON_NODE", "TASKS_PER_NODE", "CPUS_ON_NODE", "JOB_CPUS_PER_NODE", "GTIDS", "CLUSTER_NAME", "JOB_UID",
        "JOB_USER", "TMPDIR", "JOB_GPUS", "TASK_PID", "STEP_ID", "STEPID", "STEP_NUM_TASKS", "STEP_NUM_NODES",
        "STEP_NODELIST", "STEP_TASKS_PER_NODE", "LAUNCH_NODE_IPADDR", "RESTART_COUNT",
    )
}  # fmt: skip
"""Variables that the agent or ``srun`` sets."""


def pass_variables(
    env: dict[str, str], export: Directive | None, text: str, environ: Mapping[str, str], notes: list[str]
) -> None:
    """Add the variables that --export names to ``env``, and unless it leaves out ALL those that the script reads."""
    entries = [entry for entry in (export.value if export else "ALL").split(",") if entry]
    for entry in entries:
        key, equals, value = entry.partition("=")
        if equals:
            env[key] = value
        elif key in environ:
            env[key] = environ[key]
        elif key not in ("ALL", "NONE", "NIL"):
            notes.append(f"--export: {key} is not set here, so it is not passed on")
    if "ALL" not in entries:
        return
    passed = [name for name in _read_by(text) if name in environ and name not in env]
    for name in passed:
        if len(environ[name]) > _MOST_VALUE:
            raise InputError("export", name, f"is longer than {_MOST_VALUE:,} characters; write it to a file")
        env[name] = environ[name]
    if passed:
        notes.append(f"passed on from this shell, because the script reads them: {', '.join(passed)}")


def _read_by(text: str) -> list[str]:
    """Return the variables that a script reads before setting them, as its text shows, without those of shells."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    own = {name for names in _LOOPS.findall(code) for name in " ".join(names).split()}
    for name, value in _ASSIGNED.findall(code):
        if name not in [read for read, _ in _VARIABLE.findall(value)]:
            own.add(name)
    found = dict.fromkeys(name for name, _ in _VARIABLE.findall(code))
    return [name for name in found if name not in own | _OF_SHELL and not name.startswith(_OF_SYSTEM)]


def note_missing(text: str, env: Mapping[str, str], notes: list[str]) -> None:
    """Add notes on variables and programs that the script uses and will not find."""
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#")]
    options = batch_options(env) or BatchOptions()
    known = _SET | env.keys()
    known |= {"SLURM_NTASKS", "SLURM_NPROCS"} if options.tasks or options.tasks_per_node else set()
    known |= {"SLURM_NTASKS_PER_NODE"} if options.tasks_per_node else set()
    used = [found for _, line in lines for found in _VARIABLE.findall(line)]
    unset = dict.fromkeys(name for name, default in used if name.startswith("SLURM_") and not default)
    if missing := [name for name in unset if name not in known]:
        notes.append(f"will not be set: {', '.join(missing)}")
    for number, line in lines:
        if found := _CALL.search(line):
            what = "which the node's own shell must provide" if found[1] in ("module", "ml") else "which is not there"
            notes.append(f"line {number} calls {found[1]}, {what}")
