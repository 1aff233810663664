"""Job files and batch scripts: what is written becomes a submission, or one line says where and why it does not."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import InputError
from shoal.jobspec.job_file import JobFile, read_jobs
from shoal.wire.messages import Submission

HERE = Path("/home/nlp")
ENVIRON = {"HOME": "/home/nlp", "WANDB": "key"}


def read(tmp_path: Path, text: str, file: str = "train.sh", **changed: Any) -> JobFile:
    path = tmp_path / file
    path.write_text(text)
    return read_jobs(path, folder=HERE, environ=ENVIRON, given=changed)


# ── YAML ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_with_one_job_gives_that_job_named_for_the_file_in_the_folder_it_is_read_from(tmp_path: Path) -> None:
    found = read(tmp_path, "command: [python, train.py]\ngpus: 4\nwork: 1e6\n", "my bert.yaml")
    assert found == JobFile(
        (Submission(command=["python", "train.py"], name="my-bert", gpus=4, work=1e6, workdir=str(HERE)),)
    )


def test_a_file_with_a_list_gives_its_jobs_in_order(tmp_path: Path) -> None:
    text = "- &base {command: [a], gpus: 2, name: x}\n- {<<: *base, gpus: 8, name: y}\n"
    assert [(job.name, job.gpus) for job in read(tmp_path, text, "j.yaml").jobs] == [("x", 2), ("y", 8)]


def test_what_is_given_goes_before_the_file_and_variables_are_added_to_its_own(tmp_path: Path) -> None:
    text = "command: [a]\ngpus: 2\nenv: {A: a, B: b}\nworkdir: sub\n"
    (job,) = read(tmp_path, text, "j.yaml", gpus=8, env={"B": "c"}).jobs
    assert (job.gpus, job.env, job.workdir) == (8, {"A": "a", "B": "c"}, "/home/nlp/sub")


def test_a_job_may_ask_for_a_folder_of_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, "command: [a]\nworkdir: null\n", "j.yaml").jobs[0].workdir is None


_word = st.text(string.printable[:95], max_size=12)
_name = st.text(string.ascii_letters + string.digits, min_size=1, max_size=12)
_positive = st.floats(1e-300, 1e15)
_count = st.integers(1, 100_000)
_submissions = st.builds(
    Submission,
    command=st.lists(_word, min_size=1, max_size=4),
    name=_name,
    gpus=_count,
    min_gpus=st.none() | _count,
    tenant=st.none() | _name,
    work=st.none() | _positive,
    kinds=st.none() | st.lists(_name, min_size=1, max_size=3),
    weight=st.floats(1e-6, 1e6),
    deadline=st.none() | st.floats(1e-300, 1e10),
    env=st.dictionaries(_name.filter(lambda name: name[0] not in string.digits), _word, max_size=3),
    ranks=st.sampled_from(["gpu", "node"]),
    grace=st.floats(0, 3600),
    key=_word,
    workdir=st.just("/data"),
)


@settings(max_examples=60)
@given(st.lists(_submissions, min_size=1, max_size=3))
def test_every_submission_can_be_written_down_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[Submission]
) -> None:
    path = tmp_path_factory.mktemp("jobs") / "jobs.yaml"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(jobs)))
    assert read_jobs(path, folder=HERE).jobs == tuple(jobs)


@dataclass(frozen=True)
class Bad:
    """A file, and what is said of it."""

    name: str
    text: str
    says: tuple[str, ...]


BAD_YAML = (
    Bad("a misspelt field", "command: [a]\ngpu: 4\n", ("j.yaml:2: gpu: 4", "did you mean gpus")),
    Bad("a field of the second job", "- command: [a]\n- command: [b]\n  gpus: 0\n", ("j.yaml:3: gpus: 0", "from 1 to")),
    Bad("no command", "gpus: 4\n", ("command: None", "missing", "[python, train.py]")),
    Bad("a command for a shell", "command: python a.py\n", ("j.yaml:1: command: 'python a.py'", "no shell")),
    Bad("an empty command", "command: []\n", ("command: []", "list of words")),
    Bad("a number in a command", "command: [a, --lr, 0.1]\n", ("j.yaml:1: command[2]: 0.1", "in quotes")),
    Bad("a number in the environment", "command: [a]\nenv: {A: x, N: 4}\n", ("j.yaml:2: env.N: 4", "in quotes")),
    Bad("a variable of no name", "command: [a]\nenv: {1A: x}\n", ("env: '1A'", "no name of a variable")),
    Bad("an endless variable", f"command: [a]\nenv: {{A: {'x' * 5000}}}\n", ("env.A", "at most 4,096")),
    Bad("a name with blanks", "command: [a]\nname: a b\n", ("j.yaml:2: name: 'a b'", "letters, digits")),
    Bad("a kind with blanks", "command: [a]\nkinds: [v100, a b]\n", ("kinds[1]: 'a b'", "letters, digits")),
    Bad("ranks of no kind", "command: [a]\nranks: core\n", ("ranks: 'core'", "node")),
    Bad("endless work", "command: [a]\nwork: .inf\n", ("j.yaml:2: work: inf", "at most")),
    Bad("work in words", "command: [a]\nwork: much\n", ("work: 'much'",)),
    Bad("a field twice", "command: [a]\ngpus: 1\ngpus: 2\n", ("line 3: gpus is given twice",)),
    Bad("a deeply nested list", "[" * 3000, ("j.yaml", "is not a job file: it is nested too deeply")),
    Bad("broken YAML", "command: [a\n", ("j.yaml", "is not a job file: line 2")),
    Bad("a date there never was", "command: [a]\nname: 2024-13-45\n", ("j.yaml", "month")),
    Bad("nothing", "", ("j.yaml", "holds no job")),
    Bad("an empty list", "[]", ("j.yaml", "holds no job")),
    Bad("a word", "hello", ("j.yaml", "must hold a job")),
    Bad("a list of words", "[a, b]", ("j.yaml", "must hold a job")),
)


@pytest.mark.parametrize("case", BAD_YAML, ids=lambda case: case.name)
def test_a_bad_job_file_is_refused_by_line_field_and_value(tmp_path: Path, case: Bad) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, case.text, "j.yaml")
    for said in case.says:
        assert said in str(refused.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"\x80\xff\x00")
    with pytest.raises(InputError, match="not text"):
        read_jobs(tmp_path / "model.pt", folder=HERE)


# ── scripts ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Script:
    """Directives, the fields they make, and what is said beside."""

    name: str
    lines: str
    fields: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


_NODES_NOTE = "2 nodes: counted for their GPUs"
SCRIPTS = (
    Script("a number of GPUs", "--gpus=8", {"gpus": 8, "kinds": None}, (), {"SLURM_GPUS": "8"}),
    Script("GPUs of a kind", "-G a100:8", {"gpus": 8, "kinds": ["a100"]}),
    Script("a generic resource", "--gres=gpu:4", {"gpus": 4, "kinds": None}),
    Script("a generic resource of a kind", "--gres=gpu:v100:2", {"gpus": 2, "kinds": ["v100"]}),
    Script("a generic resource without a number", "--gres gpu:v100", {"gpus": 1, "kinds": ["v100"]}),
    Script("other resources beside", "--gres=gpu:2,nvme:1", {"gpus": 2}, ("not applied: nvme:1",)),
    Script("GPUs on each node", "--gres=gpu:4 --nodes=2", {"gpus": 8}, (_NODES_NOTE,)),
    Script("GPUs on each node in short", "-N2 --gpus-per-node=a100:4", {"gpus": 8, "kinds": ["a100"]}, (_NODES_NOTE,)),
    Script("GPUs for each task", "--gpus-per-task=1 -n 4", {"gpus": 4}, (), {"SLURM_NTASKS": "4"}),
    Script(
        "tasks on each node",
        "--nodes=2 --ntasks-per-node=4 --gpus-per-task=1",
        {"gpus": 8},
        (_NODES_NOTE,),
        {"SLURM_NTASKS_PER_NODE": "4"},
    ),
    Script("nodes from tasks", "--ntasks=8 --ntasks-per-node=4 --gres=gpu:4", {"gpus": 8}, (_NODES_NOTE,)),
    Script("a total and its part of each node", "--gpus=8 --gpus-per-node=4", {"gpus": 8}),
    Script("a range of nodes", "--nodes=2-4 --gres=gpu:4", {"gpus": 8}, ("taken as 2", _NODES_NOTE)),
    Script("no GPU", "--job-name=x", {"gpus": 1, "name": "x"}, ("asks for no GPU",)),
    Script("a name with blanks", "-J 'my job' -G1", {"name": "my-job"}, ("the name becomes my-job",)),
    Script("minutes", "-G1 -t 90", {"work": 5400.0}, ("-t 90: no limit",)),
    Script("minutes and seconds", "-G1 --time=10:30", {"work": 630.0}, ("no limit",)),
    Script("hours", "-G1 --time 2:00:01", {"work": 7201.0}, ("no limit",)),
    Script("days and hours", "-G1 --time=1-12", {"work": 129_600.0}, ("no limit",)),
    Script("days to seconds", "-G1 --time=1-00:00:05", {"work": 86_405.0}, ("no limit",)),
    Script("no limit", "-G1 --time=UNLIMITED", {"work": None}),
    Script("a folder", "-G1 --chdir=/data", {"workdir": "/data"}),
    Script("a folder from here", "-G1 -D runs", {"workdir": "/home/nlp/runs"}),
    Script("an account", "-G1 -A nlp", {"tenant": "nlp"}, (), {"SLURM_JOB_ACCOUNT": "nlp"}),
    Script("a constraint", "-G1 -C 'a100|h100'", {"kinds": ["a100", "h100"]}, ("taken as the kinds of GPU",)),
    Script("a constraint in brackets", "-G1 -C [a100|h100]", {"kinds": ["a100", "h100"]}, ("taken as the kinds",)),
    Script("a constraint of all", "-G1 -C 'a100&ib'", {"kinds": None}, ("not applied: -C a100&ib",)),
    Script("a constraint that agrees", "-G a100:1 -C 'a100|h100'", {"kinds": ["a100"]}),
    Script("a constraint of something else", "-G a100:1 -C ib", {"kinds": ["a100"]}, ("not applied: -C ib",)),
    Script("a warning", "-G1 --signal=B:TERM@120", {"grace": 120.0}),
    Script(
        "a warning of another kind", "-G1 --signal=USR1", {"grace": 60.0}, ("the warning before a stop is SIGTERM",)
    ),
    Script("requeueing", "-G1 --requeue", {"gpus": 1}),
    Script("no requeueing", "-G1 --no-requeue", {"gpus": 1}, ("not applied: --no-requeue",)),
    Script("files for what it prints", "-G1 -o a.txt -e b.txt", {}, ("-o a.txt: what a job", "-e b.txt: what a job")),
    Script("CPUs", "-G1 -c 8", {}, ("no CPUs are set aside",), {"SLURM_CPUS_PER_TASK": "8"}),
    Script(
        "variables",
        "-G1 --export=ALL,A=b,WANDB,NOPE",
        {},
        ("environment of this shell stays here", "NOPE is not set here"),
        {"A": "b", "WANDB": "key"},
    ),
    Script("no variables", "-G1 --export=NONE", {}),
    Script("one given twice", "-G1 --gpus=4", {"gpus": 4}),
    Script("a comment behind", "--gpus=4 # and not --gpus=8", {"gpus": 4}),
    Script(
        "what nobody here knows",
        "-G1 -p gpu --mem=64G --exclusive word",
        {"gpus": 1},
        ("not applied: -p gpu (line 2), --mem=64G (line 2), --exclusive word (line 2)",),
    ),
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


def test_the_script_itself_is_the_command_once_for_each_node(tmp_path: Path) -> None:
    (job,) = read(tmp_path, "#!/bin/bash -l\n#SBATCH -G 2\necho\n").jobs
    assert job == Submission(
        command=["/bin/bash", "-l", str(tmp_path / "train.sh")],
        name="train",
        gpus=2,
        ranks="node",
        workdir="/home/nlp",
        env={"SLURM_JOB_NAME": "train", "SLURM_SUBMIT_DIR": "/home/nlp", "SLURM_GPUS": "2"},
    )


def test_a_script_that_does_not_say_what_runs_it_is_run_by_bash(tmp_path: Path) -> None:
    assert read(tmp_path, "#SBATCH -G 2\necho\n").jobs[0].command[0] == "/bin/bash"


def test_an_array_gives_a_job_for_each_index(tmp_path: Path) -> None:
    found = read(tmp_path, "#!/bin/bash\n#SBATCH -G1 -J sweep --array=1-3,8,10-20:5%2\necho $SLURM_ARRAY_TASK_ID\n")
    assert [job.name for job in found.jobs] == [f"sweep_{i}" for i in (1, 2, 3, 8, 10, 15, 20)]
    assert [job.env["SLURM_ARRAY_TASK_ID"] for job in found.jobs] == ["1", "2", "3", "8", "10", "15", "20"]
    assert {job.env["SLURM_ARRAY_TASK_MAX"] for job in found.jobs} == {"20"}
    assert found.notes == ("--array=1-3,8,10-20:5%2: how many run at once is the policy's choice, %… is not applied",)


def test_directives_after_the_first_command_do_not_count_and_are_named(tmp_path: Path) -> None:
    found = read(tmp_path, "#!/bin/bash\n##SBATCH -G 9\n\n#SBATCH -G 2\necho\n#SBATCH -G 4\n")
    assert found.jobs[0].gpus == 2
    assert found.notes == ("line 6: #SBATCH -G 4 comes after the first command, and does not count",)


def test_what_a_script_will_miss_of_slurm_is_named(tmp_path: Path) -> None:
    body = "# srun is in a comment\necho $SLURM_JOB_ID ${SLURM_JOB_NAME} $SLURM_NODELIST\nexec srun ./train\n"
    assert read(tmp_path, f"#!/bin/bash\n#SBATCH -G1\n{body}").notes == (
        "will not be set: SLURM_JOB_ID (but SHOAL_JOB is), SLURM_NODELIST",
        "line 5 calls srun, which a node may not have: start the program itself",
    )


def test_what_is_given_goes_before_the_directives(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --time=60 -J slow --export=A=a\necho\n"
    found = read(tmp_path, text, gpus=4, work=10.0, name="fast", env={"A": "b"})
    (job,) = found.jobs
    assert (job.gpus, job.work, job.name, job.env["A"], job.env["SLURM_JOB_NAME"]) == (4, 10.0, "fast", "b", "fast")
    assert found.notes == ("not applied: --time=60: no job is stopped for the time it takes",)


def test_a_time_limit_is_no_work_of_a_model_whose_work_is_samples(tmp_path: Path) -> None:
    assert read(tmp_path, "#!/bin/bash\n#SBATCH -t 60\n", model="bert").jobs[0].work is None


BAD_SCRIPTS = (
    Bad("a number in words", "--ntasks=many", ("train.sh:2: --ntasks: 'many'", "whole number")),
    Bad("a time in words", "--time=soon", ("train.sh:2: --time: 'soon'", "hours:minutes:seconds")),
    Bad("GPUs in words", "--gpus=all", ("train.sh:2: --gpus: 'all'", "[KIND:]N")),
    Bad("GPUs with too many colons", "--gres=gpu:a:b:2", ("--gres: 'gpu:a:b:2'", "gpu[:KIND][:N]")),
    Bad("GPUs of two kinds", "--gpus=a100:1,v100:2", ("one kind",)),
    Bad("GPUs of two kinds in two ways", "-G a100:1 --gres=gpu:v100:1", ("one kind",)),
    Bad("totals that do not agree", "-G 8 -N 1 --gres=gpu:4", ("-G 8 makes 8, --gres=gpu:4 makes 4", "do not agree")),
    Bad("no nodes", "--nodes=0", ("--nodes: '0'",)),
    Bad("an array without indices", "--array=x", ("--array: 'x'", "0-15")),
    Bad("an array backwards", "--array=5-1", ("--array: '5-1'",)),
    Bad("an array that stands still", "--array=1-5:0", ("--array: '1-5:0'",)),
    Bad("an endless array", "--array=0-99999999", ("at most 10,000",)),
    Bad("a signal of two", "--signal=A@B@3", ("--signal: 'A@B@3'",)),
    Bad("a directive without its value", "--gpus", ("train.sh:2: --gpus: ''", "needs a value")),
    Bad("a quote left open", "-J 'a", ("train.sh:2: #SBATCH", "quotation")),
    Bad("an account with blanks", "-A 'a b'", ("train.sh: tenant: 'a b'", "letters, digits")),
    Bad("a grace of a day", "--signal=TERM@86400", ("grace", "3,600")),
)


@pytest.mark.parametrize("case", BAD_SCRIPTS, ids=lambda case: case.name)
def test_a_bad_directive_is_refused_by_line_option_and_value(tmp_path: Path, case: Bad) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, f"#!/bin/bash\n#SBATCH {case.text}\necho\n")
    for said in case.says:
        assert said in str(refused.value)


def test_every_field_of_a_job_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
    assert not [name for name in Submission.__struct_fields__ if f"`{name}`" not in page]
