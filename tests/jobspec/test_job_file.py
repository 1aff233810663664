"""Job files: what is written becomes a submission, or one line says where and why it does not."""

import string
from dataclasses import dataclass
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


def test_every_field_of_a_job_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
    assert not [name for name in Submission.__struct_fields__ if f"`{name}`" not in page]
