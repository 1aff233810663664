"""Options of ``srun``: those that shape a step, those without effect here, and those that are refused by name."""

import re
import sys
from typing import NoReturn

_SHORT = {
    "n": "ntasks", "N": "nodes", "l": "label", "u": "unbuffered", "o": "output", "e": "error", "i": "input",
    "D": "chdir", "K": "kill-on-bad-exit", "W": "wait", "J": "job-name", "c": "cpus-per-task", "w": "nodelist",
    "G": "gpus", "t": "time", "p": "partition", "A": "account", "v": "verbose", "Q": "quiet", "m": "distribution",
    "r": "relative", "O": "overcommit", "s": "oversubscribe", "C": "constraint", "q": "qos", "k": "no-kill",
    "X": "disable-status", "x": "exclude", "d": "dependency", "H": "hold", "L": "licenses", "b": "begin",
}  # fmt: skip

_USED = {
    "ntasks", "nodes", "ntasks-per-node", "gpus-per-task", "gpus-per-node", "gpus", "gres", "output", "error", "input",
    "chdir", "nodelist", "relative", "export", "cpus-per-task", "open-mode",
}  # fmt: skip
_USED_FLAGS = {"label", "overlap", "pty"}
_NO_EFFECT = {
    "wait", "job-name", "time", "partition", "account", "qos", "distribution", "constraint", "cpu-bind", "mem-bind",
    "mem", "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu", "gpu-bind", "gpus-per-socket", "hint", "threads-per-core",
    "cores-per-socket", "sockets-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "accel-bind",
    "cpu-freq", "gpu-freq", "network", "propagate", "signal", "slurmd-debug", "task-epilog", "task-prolog", "comment",
    "profile", "acctg-freq", "tres-per-task", "tres-bind", "thread-spec", "core-spec", "deadline", "nice", "priority",
}  # fmt: skip
_NO_EFFECT_FLAGS = {
    "unbuffered", "verbose", "quiet", "overcommit", "oversubscribe", "exact", "no-kill", "disable-status", "contiguous",
    "exclusive", "whole", "mincpus", "quit-on-interrupt", "preserve-env", "reboot", "spread-job", "use-min-nodes",
}  # fmt: skip
_OPTIONAL = {"kill-on-bad-exit", "exclusive", "whole"}
"""Options whose value, if any, follows ``=``."""
_REFUSED = {
    "multi-prog": "start one srun for each program",
    "bcast": "nodes must see the program at its path",
    "exclude": "name the nodes with --nodelist instead",
    "dependency": "srun starts a step of this job; use sbatch for another job",
    "licenses": "there are none here",
    "container": "run the container's own program, such as apptainer",
    "het-group": "a job is of one kind of GPU",
    "jobid": "steps can be started in this job only",
    "begin": "srun starts a step of this job; use sbatch for another job",
    "hold": "srun starts a step of this job; use sbatch for another job",
}


def fail(text: str, code: int = 1) -> NoReturn:
    """Print one line and exit."""
    sys.stderr.write(f"srun: error: {text}\n")
    raise SystemExit(code)


class StepOptions:
    """The options and the command of one ``srun``."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.command: list[str] = []

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a positive whole number."""
        if name not in self.given:
            return default
        text = self.given[name]
        # --nodes may be a range; the step gets the lower end.
        found = re.fullmatch(r"(\d{1,6})(?:-\d+)?" if name == "nodes" else r"(\d{1,6})", text)
        if found is None or (int(found[1]) == 0 and name != "relative"):
            fail(f"--{name}: {text!r}: must be a whole number above 0")
        return int(found[1])

    def gpus(self, name: str) -> int | None:
        """Return a number of GPUs, ``[KIND:]N`` or ``gpu[:KIND][:N]``."""
        if name not in self.given:
            return None
        *kind, last = self.given[name].split(":")
        if name == "gres":
            if self.given[name] == "none":
                return None
            if self.given[name].split(":")[0].removeprefix("gres/") != "gpu":
                fail(f"--gres: {self.given[name]!r}: only gpu[:KIND][:N] can be given to a step")
            last = last if kind and last.isdigit() else "1"
        if not last.isdigit():
            fail(f"--{name}: {self.given[name]!r}: must be a number of GPUs")
        return int(last)


def parse(words: list[str], job_id: str) -> StepOptions:
    """Read the words after ``srun``; a word that is no option begins the command."""
    found = StepOptions()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-") or word == "-":
            found.command = rest if word == "--" else [word, *rest]
            break
        for name, value, text in _split(word):
            _accept(found, name, value, text, rest, job_id)
    return found


def _split(word: str) -> list[tuple[str, str | None, str]]:
    """Return the options of a word as (name, value or None, text); ``-ul`` is two options."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return [(name, value if equals else None, f"--{name}")]
    options: list[tuple[str, str | None, str]] = []
    letters = word[1:]
    while letters:
        name = _SHORT.get(letters[0], letters[0])
        flag = name in _USED_FLAGS | _NO_EFFECT_FLAGS or name in _OPTIONAL
        attached = None if flag or len(letters) == 1 else letters[1:].removeprefix("=")
        options.append((name, attached, f"-{letters[0]}"))
        letters = letters[1:] if flag else ""
    return options


def _accept(found: StepOptions, name: str, value: str | None, text: str, rest: list[str], job_id: str) -> None:
    if name == "kill-on-bad-exit":
        found.given[name] = value or "1"
    elif name in _USED_FLAGS:
        found.given[name] = "1"
    elif name in _NO_EFFECT_FLAGS or name in _OPTIONAL:
        pass
    elif name in _USED | _NO_EFFECT | {"mpi", "jobid"}:
        if value is None and not rest:
            fail(f"{text}: needs a value")
        value = value if value is not None else rest.pop(0)
        if name == "mpi" and value != "none":
            fail(f"{text}: {value!r}: there is no PMI here; start the MPI program with its own mpirun")
        if name == "jobid" and value != job_id:
            fail(f"--jobid: {value!r}: {_REFUSED['jobid']}")
        found.given[name] = value
    else:
        hint = _REFUSED.get(name, "this srun does not know the option")
        fail(f"{text}: {hint}", 2)
