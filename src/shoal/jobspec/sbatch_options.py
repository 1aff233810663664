"""Options of ``sbatch``, read from ``#SBATCH`` lines, ``SBATCH_*`` variables and a command line.

Every option of sbatch is listed: applied, accepted with a note, or refused with the reason. One that is not listed is
refused, as sbatch does.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.core.errors import InputError, nearest

_SHORT = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "H": "hold", "J": "job-name", "N": "nodes",
    "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error", "n": "ntasks", "o": "output",
    "t": "time", "p": "partition", "q": "qos", "w": "nodelist", "x": "exclude", "F": "nodefile", "L": "licenses",
    "M": "clusters", "O": "overcommit", "s": "oversubscribe", "S": "core-spec", "W": "wait", "B": "extra-node-info",
    "k": "no-kill", "i": "input", "m": "distribution", "v": "verbose", "Q": "quiet", "h": "help", "V": "version",
}  # fmt: skip

APPLIED = {
    "account", "constraint", "chdir", "gpus", "hold", "job-name", "nodes", "array", "begin", "cpus-per-task",
    "dependency", "error", "ntasks", "output", "time", "partition", "qos", "gres", "gpus-per-node", "gpus-per-task",
    "ntasks-per-node", "ntasks-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu", "export", "signal", "requeue",
    "no-requeue", "nice", "exclusive", "open-mode", "comment", "wrap", "parsable", "test-only", "cpus-per-gpu",
}  # fmt: skip

_NOTED = {
    "mail-type": "Shoal sends no mail",
    "mail-user": "Shoal sends no mail",
    "priority": "use --nice, or `shoal priority`",
    "nodelist": "the policy chooses the nodes",
    "exclude": "the policy chooses the nodes",
    "nodefile": "the policy chooses the nodes",
    "reservation": "there are no reservations; see quotas in docs/cluster.md",
    "time-min": "the limit is --time",
    "deadline": "use --deadline of `shoal submit`",
    "distribution": "tasks are numbered node by node",
    "switches": "the policy chooses the nodes",
    "get-user-env": "variables that the script names are passed on",
    "export-file": "name variables with --export",
    "ntasks-per-socket": "tasks are not bound to sockets",
    "ntasks-per-core": "tasks are not bound to cores",
    "gpus-per-socket": "GPUs are not bound to sockets",
    "input": "a batch script reads nothing",
    "propagate": "limits are those of the node's agent",
    "tmp": "no disk space is reserved",
    "mincpus": "use --cpus-per-task",
    "prefer": "use --constraint",
    "contiguous": "the policy chooses the nodes",
    "spread-job": "the policy chooses the nodes",
    "use-min-nodes": "the policy chooses the nodes",
    "segment": "the policy chooses the nodes",
    "oversubscribe": "which jobs share GPUs is up to the policy",
    "no-kill": "a job that loses a node starts again",
    "kill-on-invalid-dep": "a job whose condition can never hold is cancelled",
    "threads-per-core": "CPUs are counted, not bound",
    "core-spec": "CPUs are counted, not bound",
    "thread-spec": "CPUs are counted, not bound",
    "cpu-freq": "clocks stay as they are",
    "gpu-freq": "clocks stay as they are",
    "reboot": "nodes are not booted",
    "network": "networks stay as they are",
    "uid": "jobs run as the user of their tenant",
    "gid": "jobs run as the user of their tenant",
}
_SILENT = {
    "verbose", "quiet", "overcommit", "hint", "cpu-bind", "mem-bind", "gpu-bind", "profile", "acctg-freq",
    "cores-per-socket", "sockets-per-node", "extra-node-info", "wait-all-nodes", "ignore-pbs", "gres-flags", "wckey",
    "delay-boot", "power", "mcs-label", "extra", "resv-ports", "stepmgr", "tres-bind",
}  # fmt: skip
"""Options of sbatch without meaning here, whose absence no script can notice."""

_REFUSED = {
    "licenses": "there are no licences to count; leave it out",
    "clusters": "name the cluster with SHOAL_SERVER",
    "bb": "there are no burst buffers",
    "bbf": "there are no burst buffers",
    "container": "run the container's own program, such as apptainer",
    "het-group": "a job is of one kind of GPU: submit several jobs",
    "wait": "use `shoal logs -f JOB`, which ends with the job",
    "tres-per-task": "use --gpus-per-task and --cpus-per-task",
    "batch": "the script runs on the job's first node",
}

_FLAGS = {
    "hold", "requeue", "no-requeue", "verbose", "quiet", "overcommit", "oversubscribe", "parsable", "test-only",
    "contiguous", "spread-job", "use-min-nodes", "ignore-pbs", "wait", "reboot", "stepmgr", "resv-ports",
}  # fmt: skip
_OPTIONAL = {"exclusive", "nice", "no-kill", "get-user-env", "mem-bind", "propagate"}
"""Options whose value, if any, follows ``=``."""

_VARIABLES = {
    "SBATCH_ACCOUNT": "account", "SBATCH_ARRAY_INX": "array", "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_EXCLUSIVE": "exclusive", "SBATCH_EXPORT": "export", "SBATCH_GPUS": "gpus", "SBATCH_GRES": "gres",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_TASK": "gpus-per-task", "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_NODE": "mem", "SBATCH_MEM_PER_CPU": "mem-per-cpu", "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_OUTPUT": "output", "SBATCH_ERROR": "error", "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos", "SBATCH_REQUEUE": "requeue",
    "SBATCH_NO_REQUEUE": "no-requeue", "SBATCH_RESERVATION": "reservation", "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time", "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
}  # fmt: skip
"""Variables that sbatch reads; they override the script, and the command line overrides them."""

GPU_OPTIONS = ("gpus", "gpus-per-node", "gres", "gpus-per-task")


@dataclass(frozen=True, slots=True)
class Directive:
    """An option: its long name, value and text, and the place where it stands."""

    name: str
    value: str
    text: str
    where: str

    def error(self, hint: str) -> InputError:
        """An ``InputError`` at this option."""
        return InputError(self.text.partition("=")[0].split()[0], self.value, hint, where=self.where)

    def count(self) -> int:
        """The value as a whole number."""
        if not self.value.isdecimal():
            raise self.error("must be a whole number")
        return int(self.value)


def wanted_options(
    text: str, name: str, environ: Mapping[str, str], words: Sequence[str], notes: list[str]
) -> dict[str, Directive]:
    """The options of a script, overridden by ``SBATCH_*`` variables and those by the ``words`` of a command line."""
    levels = (_directives(text, name, notes), _variables(environ), _options(list(words), ""))
    wanted: dict[str, Directive] = {}
    for level in levels:
        found = {directive.name: directive for directive in level}
        if set(GPU_OPTIONS) & found.keys():
            wanted = {key: one for key, one in wanted.items() if key not in GPU_OPTIONS}
        wanted |= found
    for directive in [*wanted.values()]:
        if directive.name in _NOTED:
            line = directive.where.rpartition(":")[2]
            line = f" (line {line})" if line else ""
            notes.append(f"not applied: {directive.text}{line}: {_NOTED[directive.name]}")
    return wanted


def _directives(text: str, name: str, notes: list[str]) -> Iterator[Directive]:
    """Yield the options of the ``#SBATCH`` lines before the first command, as sbatch reads them."""
    commands_began = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#SBATCH"):
            commands_began = commands_began or bool(line.strip() and not line.lstrip().startswith("#"))
        elif commands_began:
            notes.append(f"line {number}: {line.strip()} comes after the first command, and does not count")
        else:
            where = f"{name}:{number}"
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:
                raise InputError("#SBATCH", line.strip(), f"cannot be read: {error}", where=where) from error
            yield from _options(words, where)


def _variables(environ: Mapping[str, str]) -> Iterator[Directive]:
    for variable, name in _VARIABLES.items():
        if variable in environ:
            value = environ[variable]
            yield Directive(name, "" if name in _FLAGS else value, f"{variable}={value}", "")


def _options(words: list[str], where: str) -> Iterator[Directive]:
    while words:
        text = words.pop(0)
        if text.startswith("--"):
            name, _, value = text[2:].partition("=")
        elif text.startswith("-") and len(text) > 1:
            name, value = _SHORT.get(text[1], text[:2]), text[2:].removeprefix("=")
        else:
            raise InputError("option", text, "is not an option; write --name=value", where=where)
        name = {"workdir": "chdir", "tasks-per-node": "ntasks-per-node", "mail": "mail-type"}.get(name, name)
        if name not in _FLAGS | _OPTIONAL and "=" not in text and not value and words:
            value = words.pop(0)
            text = f"{text} {value}"
        directive = Directive(name, value, text, where)
        _check(directive)
        yield directive


def takes_word(text: str) -> bool:
    """Whether the value of this option of a command line is the word after it."""
    if text.startswith("--"):
        return "=" not in text and text[2:] not in _FLAGS | _OPTIONAL
    return len(text) == 2 and _SHORT.get(text[1], "") not in _FLAGS | _OPTIONAL


def _check(directive: Directive) -> None:
    name = directive.name
    known = APPLIED | _SILENT | set(_NOTED)
    if name in _REFUSED:
        raise directive.error(_REFUSED[name])
    if name not in known:
        raise directive.error(f"is no option of sbatch that Shoal knows: {nearest(name, known)}")
    if not directive.value and name not in _FLAGS | _OPTIONAL:
        raise directive.error("needs a value")
