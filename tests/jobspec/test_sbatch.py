"""Batch scripts: options of sbatch become fields of a submission, what differs is named before it runs."""

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from shoal.core.errors import InputError
from shoal.jobspec.job_file import JobFile, read_jobs, read_script
from shoal.wire.batch_script import BatchOptions, batch_options

HERE = Path("/home/nlp")
ENVIRON = {"HOME": "/home/nlp", "WANDB": "key", "LR": "0.1"}
NOW = datetime.fromisoformat("2026-11-16T12:00:00+00:00")


def read(tmp_path: Path, text: str, file: str = "train.sh", **changed: Any) -> JobFile:
    path = tmp_path / file
    path.write_text(text)
    return read_jobs(path, folder=HERE, environ=ENVIRON, given=changed)


@dataclass(frozen=True)
class Script:
    """Directives, the fields they make, and what is said beside."""

    name: str
    lines: str
    fields: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


_NODES_NOTE = "2 nodes: the cluster may place their GPUs"
SCRIPTS = (
    Script("a number of GPUs", "--gpus=8", {"gpus": 8, "kinds": None}, (), {"SLURM_GPUS": "8"}),
    Script("GPUs of a kind", "-G a100:8", {"gpus": 8, "kinds": ["a100"]}),
    Script("a generic resource", "--gres=gpu:4", {"gpus": 4, "kinds": None}),
    Script("a generic resource of a kind", "--gres=gpu:v100:2", {"gpus": 2, "kinds": ["v100"]}),
    Script("a generic resource without a number", "--gres gpu:v100", {"gpus": 1, "kinds": ["v100"]}),
    Script("other resources beside", "--gres=gpu:2,nvme:1", {"gpus": 2}, ("not applied: nvme:1",)),
    Script("GPUs on each node", "--gres=gpu:4 --nodes=2", {"gpus": 8}, (_NODES_NOTE,)),
    Script("GPUs on each node in short", "-N2 --gpus-per-node=a100:4", {"gpus": 8, "kinds": ["a100"]}, (_NODES_NOTE,)),
    Script("GPUs for each task", "--gpus-per-task=1 -n 4", {"gpus": 4}, (), {"SLURM_GPUS_PER_TASK": "1"}),
    Script(
        "tasks on each node",
        "--nodes=2 --ntasks-per-node=4 --gpus-per-task=1",
        {"gpus": 8},
        (_NODES_NOTE,),
        {"SLURM_GPUS_PER_TASK": "1"},
    ),
    Script("nodes from tasks", "--ntasks=8 --ntasks-per-node=4 --gres=gpu:4", {"gpus": 8}, (_NODES_NOTE,)),
    Script("a total and its part of each node", "--gpus=8 --gpus-per-node=4", {"gpus": 8}),
    Script("a range of nodes", "--nodes=2-4 --gres=gpu:4", {"gpus": 8}, ("taken as 2", _NODES_NOTE)),
    Script("no GPU", "--job-name=x", {"gpus": 1, "name": "x"}, ("asks for no GPU",)),
    Script("a name with blanks", "-J 'my job' -G1", {"name": "my-job"}, ("the name becomes my-job",)),
    Script("minutes", "-G1 -t 90", {"work": 5400.0}),
    Script("minutes and seconds", "-G1 --time=10:30", {"work": 630.0}),
    Script("hours", "-G1 --time 2:00:01", {"work": 7201.0}),
    Script("days and hours", "-G1 --time=1-12", {"work": 129_600.0}),
    Script("days to seconds", "-G1 --time=1-00:00:05", {"work": 86_405.0}),
    Script("no limit", "-G1 --time=UNLIMITED", {"work": None}),
    Script("a folder", "-G1 --chdir=/data", {"workdir": "/data"}),
    Script("a folder from here", "-G1 -D runs", {"workdir": "/home/nlp/runs"}),
    Script("an account", "-G1 -A nlp", {"tenant": "nlp"}, (), {"SLURM_JOB_ACCOUNT": "nlp"}),
    Script("a constraint", "-G1 -C 'a100|h100'", {"kinds": ["a100", "h100"]}, ("taken as the kinds of GPU",)),
    Script("a constraint in brackets", "-G1 -C [a100|h100]", {"kinds": ["a100", "h100"]}, ("taken as the kinds",)),
    Script("a constraint of all", "-G1 -C 'a100&ib'", {"kinds": None}, ("not applied: -C a100&ib",)),
    Script("a constraint that agrees", "-G a100:1 -C 'a100|h100'", {"kinds": ["a100"]}),
    Script("a constraint of something else", "-G a100:1 -C ib", {"kinds": ["a100"]}, ("not applied: -C ib",)),
    Script("a warning without a limit", "-G1 --signal=B:USR1@120", {}, ("there is no --time",)),
    Script("requeueing", "-G1 --requeue", {"gpus": 1}),
    Script("no requeueing", "-G1 --no-requeue", {"gpus": 1}),
    Script("files for what it prints", "-G1 -o a.txt -e b.txt", {}),
    Script("CPUs", "-G1 -c 8", {"cpus": 8}, (), {"SLURM_CPUS_PER_TASK": "8"}),
    Script(
        "variables",
        "-G1 --export=ALL,A=b,WANDB,NOPE",
        {},
        ("NOPE is not set here",),
        {"A": "b", "WANDB": "key"},
    ),
    Script("no variables", "-G1 --export=NONE", {}),
    Script("one given twice", "-G1 --gpus=4", {"gpus": 4}),
    Script("a comment behind", "--gpus=4 # and not --gpus=8", {"gpus": 4}),
    Script(
        "a partition",
        "-G1 -p gpu",
        {},
        ("not applied: -p gpu: there are no partitions",),
        {"SLURM_JOB_PARTITION": "gpu"},
    ),
    Script(
        "mail",
        "-G1 --mail-type=END --mail-user a@b",
        {},
        ("--mail-type=END (line 2): Shoal sends no mail", "--mail-user"),
    ),
    Script("what no script can notice", "-G1 --hint=nomultithread --verbose -O", {}),
    Script(
        "which nodes", "-G1 --contiguous --prefer=a100", {"kinds": None}, ("--contiguous (line 2)", "--prefer=a100")
    ),
    Script("clocks", "-G1 --gpu-freq=high", {}, ("not applied: --gpu-freq=high (line 2): clocks stay as they are",)),
    Script("a condition that fails", "-G1 --kill-on-invalid-dep=no", {}, ("--kill-on-invalid-dep=no",)),
    Script("a lost node", "-G1 -k", {}, ("not applied: -k (line 2): a job that loses a node starts again",)),
    Script("nodes by name", "-G1 -x gpu7 -w gpu1", {}, ("not applied: -x gpu7", "not applied: -w gpu1")),
)


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda case: case.name)
def test_a_directive_becomes_a_field_and_whatever_does_not_is_named(tmp_path: Path, case: Script) -> None:
    found = read(tmp_path, f"#!/bin/bash\n#SBATCH {case.lines}\npython train.py\n")
    (job,) = found.jobs
    assert {name: getattr(job, name) for name in case.fields} == case.fields
    assert len(found.notes) == len(case.notes), found.notes
    for said in case.notes:
        assert any(said in note for note in found.notes), found.notes
    assert job.env == {**job.env, **case.env}


def test_the_script_as_it_is_now_is_the_command_of_one_process_on_each_node(tmp_path: Path) -> None:
    text = "#!/bin/bash -l\n#SBATCH -G 2\necho\n"
    (job,) = read(tmp_path, text).jobs
    assert (job.command, job.name, job.gpus) == (["/bin/bash", "-l", str(tmp_path / "train.sh")], "train", 2)
    assert (job.ranks, job.workdir) == ("node", "/home/nlp")
    kept = base64.b85decode(job.env["SHOAL_SCRIPT"])
    assert (zlib.decompress(kept).decode(), batch_options(job.env)) == (text, BatchOptions(script=2))


def test_a_script_too_long_for_the_journal_is_read_from_its_path_when_it_starts(tmp_path: Path) -> None:
    noise = "".join(f"echo {random.random()}\n" for random in [Random(1)] for _ in range(1000))
    found = read(tmp_path, f"#!/bin/bash\n#SBATCH -G1\n{noise}")
    assert "SHOAL_SCRIPT" not in found.jobs[0].env
    assert found.notes == ("the script is too long to be kept: it is read from its path when the job starts",)


def test_a_script_that_does_not_say_what_runs_it_is_run_by_bash(tmp_path: Path) -> None:
    assert read(tmp_path, "#SBATCH -G 2\necho\n").jobs[0].command[0] == "/bin/bash"


def test_an_array_gives_a_job_for_each_index(tmp_path: Path) -> None:
    found = read(tmp_path, "#!/bin/bash\n#SBATCH -G1 -J sweep --array=1-3,8,10-20:5\necho $SLURM_ARRAY_TASK_ID\n")
    assert [job.name for job in found.jobs] == [f"sweep_{i}" for i in (1, 2, 3, 8, 10, 15, 20)]
    assert [job.env["SLURM_ARRAY_TASK_ID"] for job in found.jobs] == ["1", "2", "3", "8", "10", "15", "20"]
    assert {job.env["SLURM_ARRAY_TASK_MAX"] for job in found.jobs} == {"20"}
    assert len({job.env["SLURM_ARRAY_JOB_ID"] for job in found.jobs}) == 1
    assert found.notes == ()


def test_a_long_name_leaves_room_for_the_index_of_an_array(tmp_path: Path) -> None:
    found = read(tmp_path, f"#!/bin/bash\n#SBATCH -G1 -J {'x' * 64} --array=9-10\necho\n")
    assert [job.name for job in found.jobs] == ["x" * 62 + "_9", "x" * 61 + "_10"]


def test_directives_after_the_first_command_do_not_count_and_are_named(tmp_path: Path) -> None:
    found = read(tmp_path, "#!/bin/bash\n##SBATCH -G 9\n\n#SBATCH -G 2\necho\n#SBATCH -G 4\n")
    assert found.jobs[0].gpus == 2
    assert found.notes == ("line 6: #SBATCH -G 4 comes after the first command, and does not count",)


def test_what_a_script_will_miss_of_slurm_is_named(tmp_path: Path) -> None:
    body = "# sinfo is in a comment\necho $SLURM_JOB_ID $SLURM_NTASKS ${SLURM_HINT} ${SLURM_PRIO_PROCESS:-0}\n"
    assert read(tmp_path, f"#!/bin/bash\n#SBATCH -G1\n{body}module load cuda\nexec sinfo\n").notes == (
        "will not be set: SLURM_NTASKS, SLURM_HINT",
        "line 5 calls module, which the node's own shell must provide",
        "line 6 calls sinfo, which is not there",
    )


def test_variables_of_this_shell_that_the_script_reads_are_passed_on_and_named(tmp_path: Path) -> None:
    body = "HOST=$(hostname)\nLR=${LR:-1}\nWANDB=other\npython train.py --lr $LR $WANDB $HOME\n"
    found = read(tmp_path, f"#!/bin/bash\n#SBATCH -G1\n{body}")
    assert found.jobs[0].env["LR"] == "0.1"
    assert not {"HOME", "HOST", "WANDB"} & found.jobs[0].env.keys()
    assert found.notes == ("passed on from this shell, because the script reads them: LR",)
    assert "LR" not in read(tmp_path, f"#!/bin/bash\n#SBATCH -G1 --export=NONE\n{body}").jobs[0].env


def test_what_is_given_goes_before_the_directives(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --time=60 -J slow --export=A=a\necho\n"
    found = read(tmp_path, text, gpus=4, work=10.0, name="fast", env={"A": "b"})
    (job,) = found.jobs
    assert (job.gpus, job.work, job.name, job.env["A"], job.env["SLURM_JOB_NAME"]) == (4, 10.0, "fast", "b", "fast")


def test_a_time_limit_is_no_work_of_a_model_whose_work_is_samples(tmp_path: Path) -> None:
    assert read(tmp_path, "#!/bin/bash\n#SBATCH -t 60\n", model="bert").jobs[0].work is None


@dataclass(frozen=True)
class BadScript:
    """Options, and what is said of them."""

    name: str
    text: str
    says: tuple[str, ...]


BAD_SCRIPTS = (
    BadScript("a number in words", "--ntasks=many", ("train.sh:2: --ntasks: 'many'", "whole number")),
    BadScript("a time in words", "--time=soon", ("train.sh:2: --time: 'soon'", "hours:minutes:seconds")),
    BadScript("GPUs in words", "--gpus=all", ("train.sh:2: --gpus: 'all'", "[KIND:]N")),
    BadScript("GPUs with too many colons", "--gres=gpu:a:b:2", ("--gres: 'gpu:a:b:2'", "gpu[:KIND][:N]")),
    BadScript("GPUs of two kinds", "--gpus=a100:1,v100:2", ("one kind",)),
    BadScript("GPUs of two kinds in two ways", "-G a100:1 --gres=gpu:v100:1", ("one kind",)),
    BadScript(
        "totals that do not agree", "-G 8 -N 1 --gres=gpu:4", ("-G 8 makes 8, --gres=gpu:4 makes 4", "do not agree")
    ),
    BadScript("no nodes", "--nodes=0", ("--nodes: '0'",)),
    BadScript("an array without indices", "--array=x", ("--array: 'x'", "0-15")),
    BadScript("an array backwards", "--array=5-1", ("--array: '5-1'",)),
    BadScript("an array that stands still", "--array=1-5:0", ("--array: '1-5:0'",)),
    BadScript("an endless array", "--array=0-99999999", ("at most 10,000",)),
    BadScript("a signal of two", "--signal=A@B@3", ("--signal: 'A@B@3'",)),
    BadScript("a signal that cannot be passed on", "-t 1 --signal=STOP", ("--signal: 'STOP'", "USR1")),
    BadScript("a directive without its value", "--gpus", ("train.sh:2: --gpus: ''", "needs a value")),
    BadScript("a quote left open", "-J 'a", ("train.sh:2: #SBATCH", "quotation")),
    BadScript("an account with blanks", "-A 'a b'", ("train.sh: tenant: 'a b'", "letters, digits")),
    BadScript("an unknown option", "--gpu=4", ("train.sh:2: --gpu: '4'", "did you mean gpus")),
    BadScript("an option of another tool", "--container-image=x", ("--container-image", "no option of sbatch")),
    BadScript("licences", "-L matlab:1", ("-L: 'matlab:1'", "leave it out")),
    BadScript("a word", "gpu", ("train.sh:2: option: 'gpu'", "is not an option")),
    BadScript("memory in words", "--mem=lots", ("train.sh:2: --mem: 'lots'", "64G")),
    BadScript("a priority in words", "--nice=very", ("--nice: 'very'",)),
    BadScript("an alternative of conditions", "-d afterok:1?afterok:2", ("not `?`",)),
    BadScript("an unknown condition", "-d aftercorr:1", ("-d: 'aftercorr:1'", "afterok, afterany")),
    BadScript("a start with a delay", "-d after:1+5", ("afterok, afterany",)),
    BadScript("a begin in words", "--begin=soon", ("--begin: 'soon'", "now+1hour")),
    BadScript("a begin of no unit", "--begin=now+5years", ("now+1hour",)),
    BadScript("an hour after midnight", "--begin=25:00", ("now+1hour",)),
    BadScript("a mode of opening", "--open-mode=w", ("append or truncate",)),
    BadScript("a limit of an array in words", "--array=0-3%many", ("0-15%4",)),
)


@pytest.mark.parametrize("case", BAD_SCRIPTS, ids=lambda case: case.name)
def test_a_bad_directive_is_refused_by_line_option_and_value(tmp_path: Path, case: BadScript) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, f"#!/bin/bash\n#SBATCH {case.text}\necho\n")
    for said in case.says:
        assert said in str(refused.value)


@dataclass(frozen=True)
class Fields:
    """Options, and the fields of the submission that they make."""

    name: str
    lines: str
    fields: Mapping[str, Any]


FIELDS = (
    Fields("a time limit", "-t 90", {"time": 5400.0, "work": 5400.0}),
    Fields(
        "a warning for the steps", "-t 1 --signal=USR1@30", {"signal": {"signal": "USR1", "before": 30.0, "main": True}}
    ),
    Fields(
        "a warning for the script", "-t 1 --signal=B:10", {"signal": {"signal": "10", "before": 60.0, "main": True}}
    ),
    Fields("after", "-d after:a", {"after": [{"job": "a", "when": "start"}]}),
    Fields("success", "-d afterok:a:b", {"after": [{"job": "a", "when": "ok"}, {"job": "b", "when": "ok"}]}),
    Fields(
        "several", "-d afterany:a,afternotok:b", {"after": [{"job": "a", "when": "any"}, {"job": "b", "when": "notok"}]}
    ),
    Fields("its namesakes", "--dependency=singleton", {"singleton": True}),
    Fields("a delay", "--begin=now+2hours", {"begin": NOW.timestamp() + 7200}),
    Fields("a delay in seconds", "--begin=now+5", {"begin": NOW.timestamp() + 5}),
    Fields("a time of day", "-b 13:30", {"begin": NOW.timestamp() + 5400}),
    Fields("a time that is over today", "-b 11:00", {"begin": NOW.timestamp() + 23 * 3600}),
    Fields("a date", "--begin=2026-11-17T12:00", {"begin": NOW.timestamp() + 86_400}),
    Fields("tomorrow", "--begin=tomorrow", {"begin": NOW.timestamp() + 86_400}),
    Fields("held", "-H", {"hold": True}),
    Fields("nice", "--nice=20", {"priority": -20}),
    Fields("nice by default", "--nice", {"priority": -100}),
    Fields("alone", "--exclusive", {"exclusive": True}),
    Fields("never again", "--no-requeue", {"preemptible": "no", "retries": 0}),
    Fields("memory", "--mem=64G", {"memory": 64 << 30}),
    Fields("memory in megabytes", "--mem=500", {"memory": 500 << 20}),
    Fields("memory of each GPU", "--mem-per-gpu=2G -N2 --gpus-per-node=4", {"memory": 8 << 30}),
    Fields("memory of each CPU", "--mem-per-cpu=1G -c 4 --ntasks-per-node=2", {"memory": 8 << 30, "cpus": 8}),
    Fields("all memory", "--mem=0", {"memory": None}),
    Fields("CPUs", "-c 8", {"cpus": 8}),
    Fields("CPUs of tasks", "-c 8 -n 4 -N 2", {"cpus": 16}),
    Fields("CPUs of GPUs", "--cpus-per-gpu=3 --gres=gpu:4", {"cpus": 12}),
    Fields("an array with a limit", "--array=0-9%2", {"most_at_once": 2}),
)


@pytest.mark.parametrize("case", FIELDS, ids=lambda case: case.name)
def test_an_option_of_sbatch_becomes_the_field_of_the_same_meaning(case: Fields) -> None:
    text = f"#!/bin/bash\n#SBATCH {case.lines}\necho\n"
    job = read_script(text, Path("train.sh"), folder=HERE, now=NOW).jobs[0]
    assert {name: msgspec.to_builtins(getattr(job, name)) for name in case.fields} == case.fields


def test_the_command_line_goes_before_the_variables_of_sbatch_and_these_before_the_script() -> None:
    text = "#!/bin/bash\n#SBATCH -G 1 -J script -o script.txt --gres=gpu:1\necho\n"
    environ = {"SBATCH_JOB_NAME": "variable", "SBATCH_OUTPUT": "variable.txt"}
    found = read_script(
        text, Path("t.sh"), folder=HERE, environ=environ, words=["-J", "line", "--gpus-per-node=2"], arguments=["a"]
    )
    (job,) = found.jobs
    options = batch_options(job.env)
    assert options is not None
    assert (job.name, options.output, job.gpus, job.command[-1]) == ("line", "variable.txt", 2, "a")


def test_a_script_with_dos_line_breaks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dos.sh").write_bytes(b"#!/bin/bash\r\n#SBATCH -G1\r\necho\r\n")
    with pytest.raises(InputError, match="DOS line breaks"):
        read_jobs(tmp_path / "dos.sh", folder=HERE)
