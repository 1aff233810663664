"""What a submission becomes, and what is refused with which hint."""

import pytest
from tests.refusals import refusal

from shoal.core.batch_limits import BatchLimits
from shoal.core.job import JobSpec, Launch
from shoal.core.topology import parse_cluster
from shoal.live.admission import Admission
from shoal.perf.catalog import catalog
from shoal.provider.protocol import Abilities
from shoal.wire.messages import Ahead, Reshape, Submission

RULES = Admission(parse_cluster("v100:2x4,k80:3x2"), catalog(), roots=("/data", "/home/"))


def admit(**fields: object) -> tuple[JobSpec, Launch]:
    wanted = Submission(**{"command": ["python", "t.py"], **fields})  # type: ignore[arg-type]
    return RULES.admit(wanted, "job-1", "ann", 50.0)


def test_a_grace_beyond_the_operators_is_refused() -> None:
    rules = Admission(RULES.topology, RULES.catalog, max_grace=60.0)
    rules.admit(Submission(command=["train"], grace=60.0), "a", "ana", 0.0)
    with refusal("grace: 61.0: this cluster allows at most 60 seconds (`--max-grace` of its control plane)"):
        rules.admit(Submission(command=["train"], grace=61.0), "a", "ana", 0.0)


def test_what_a_job_asks_of_an_engine_is_kept_where_policies_do_not_see_it() -> None:
    rules = Admission(RULES.topology, RULES.catalog, abilities=Abilities(users=True, images=True))
    wanted = Submission(command=["train"], image="pytorch:2", account="ml", cpus=4, memory=2**30)
    spec, launch = rules.admit(wanted, "job-1", "ann", 50.0)
    assert (launch.image, launch.account, launch.cpus, launch.memory) == ("pytorch:2", "ml", 4, 2**30)
    assert "pytorch" not in repr(spec)


def test_a_submission_that_says_little_gets_the_defaults() -> None:
    assert admit() == (
        JobSpec("job-1", 50.0, 1, None, 1, 1, tenant="ann", preemptible="auto", name="job", script="t.py"),
        Launch("job", ("python", "t.py"), grace=10.0),
    )


def test_everything_a_submission_says_is_kept() -> None:
    spec, launch = admit(
        name="n", gpus=4, min_gpus=2, max_gpus=8, app="a", work=9.0, kinds=["v100"], weight=2.0, deadline=100.0,
        batch_size=64, max_batch_size=256, min_local_batch=2, max_local_batch=32, adaptation="gns",
        env={"B": "2", "A": "1"}, workdir="/data/x/../y", grace=3.0, key="k", resizes="in_place",
        ahead=[Ahead(jobs=2, gpus=1, work=5.0)], preemptible="no",
    )  # fmt: skip
    assert spec == JobSpec(
        "job-1", 50.0, 4, 9.0, 2, 8, "ann", "a", None, 64, ("v100",), 2.0, 150.0, ahead=((2, 1, 5.0),),
        limits=BatchLimits(64, 256, 2, 32), adaptation="gns", preemptible="no", name="n", script="t.py",
    )  # fmt: skip
    env = (("A", "1"), ("B", "2"))
    assert launch == Launch("n", ("python", "t.py"), env, "/data/y", "gpu", 3.0, "k", in_place=True)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "more GPUs than any kind has": ({"gpus": 9}, "gpus: 9: the most this cluster has of one kind is 8"),
    "more than its kind has": ({"gpus": 7, "kinds": ["k80"]}, "gpus: 7: the most this cluster has of k80 is 6"),
    "a kind that is not there": ({"kinds": ["v10"]}, "kinds: 'v10': unknown; did you mean v100?"),
    "fewer than its least": ({"gpus": 2, "min_gpus": 3}, "gpus: 2: must lie between min_gpus (3) and max_gpus (2)"),
    "more than its most": ({"gpus": 4, "max_gpus": 3}, "gpus: 4: must lie between min_gpus (4) and max_gpus (3)"),
    "an unknown model": (
        {"model": "resnet51"},
        "model: 'resnet51': unknown; did you mean afs-resnet-50 or ResNet-50 or ResNet-18?",
    ),
    "an image where none runs": (
        {"image": "ubuntu"},
        "image: 'ubuntu': this cluster does not run jobs in an engine's own allocations; leave it out",
    ),
    "an account of an engine": (
        {"account": "ml"},
        "account: 'ml': this cluster does not run jobs in an engine's own allocations; leave it out",
    ),
    "a zero byte in its command": (
        {"command": ["a", "b\0"]},
        "command: '\\\\0': no argument of a program can hold a zero byte",
    ),
    "a zero byte in its environment": (
        {"env": {"A": "\0"}},
        "env: '\\\\0': no argument of a program can hold a zero byte",
    ),
    "a relative folder": ({"workdir": "data"}, "workdir: 'data': must be an absolute path"),
    "a folder with a zero byte": ({"workdir": "/data/\0"}, "workdir: '/data/\\x00': must be an absolute path"),
    "a folder elsewhere": (
        {"workdir": "/database"},
        "workdir: '/database': must lie in /data or /home/, or be left out",
    ),
    "a way out of the folders": (
        {"workdir": "/data/../etc"},
        "workdir: '/data/../etc': must lie in /data or /home/, or be left out",
    ),
    "phases of no app": (
        {"ahead": [Ahead(jobs=1, gpus=1, work=1.0)]},
        "ahead: 1: needs app: these are its phases",
    ),
    "more jobs in its phases than a policy can simulate": (
        {"app": "a", "ahead": [Ahead(jobs=9_999, gpus=1, work=1.0), Ahead(jobs=2, gpus=1, work=1.0)]},
        "ahead: 10001: its phases can have at most 10,000 jobs together",
    ),
    "in place with a rank on each node": (
        {"resizes": "in_place", "ranks": "node"},
        "ranks: 'node': must be gpu where a job is resized in place: a worker on each GPU",
    ),
    "in place without Python": (
        {"resizes": "in_place", "command": ["./python/t"]},
        "command: './python/t': must begin with the job's Python where it is resized in place, "
        "which also keeps the job's store",
    ),
    "a local batch without a largest": (
        {"min_local_batch": 2},
        "min_local_batch: 2: has no effect without max_batch_size, which lets the batch be adapted",
    ),
    "a largest local batch without one": (
        {"max_local_batch": 2},
        "max_local_batch: 2: has no effect without max_batch_size, which lets the batch be adapted",
    ),
    "a largest batch without a batch": (
        {"max_batch_size": 8},
        "max_batch_size: 8: needs batch_size, the one the job was tuned for",
    ),
    "a largest batch below the batch": (
        {"batch_size": 9, "max_batch_size": 8},
        "max_batch_size: 8: is below batch_size (9)",
    ),
    "a local batch above what fits": (
        {"gpus": 2, "batch_size": 9, "max_batch_size": 9, "min_local_batch": 6},
        "min_local_batch: 6: is above the most samples a GPU takes at once (5)",
    ),
    "more GPUs than either of its kinds has": (
        {"gpus": 9, "kinds": ["v100", "k80"]},
        "gpus: 9: the most this cluster has of v100 or k80 is 8",
    ),
    "a whole node where nodes are larger": (
        {"gpus": 2, "exclusive": True},
        "gpus: 2: must be all GPUs of its nodes where it is exclusive, and nodes of v100 have 4",
    ),
    "a whole node of either kind": (
        {"gpus": 2, "exclusive": True, "kinds": ["v100", "k80"]},
        "gpus: 2: must be all GPUs of its nodes where it is exclusive, and nodes of v100 have 4",
    ),
    "whole nodes that grow": (
        {"gpus": 4, "max_gpus": 8, "exclusive": True},
        "exclusive: True: needs a fixed number of GPUs: leave min_gpus and max_gpus out",
    ),
    "a later argument with a zero byte": (
        {"command": ["a", "b", "c\0d"]},
        "command: '\\\\0': no argument of a program can hold a zero byte",
    ),
}


@pytest.mark.parametrize(("fields", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(fields: dict[str, object], sentence: str) -> None:
    with refusal(sentence):
        admit(**fields)


def test_whole_nodes_may_be_asked_for_where_all_usable_nodes_have_as_many_gpus() -> None:
    assert admit(gpus=4, exclusive=True, kinds=["v100"])[0].exclusive
    assert admit(gpus=4, exclusive=True)[0].gpus == 4
    assert admit(gpus=2, exclusive=True, kinds=["k80"])[0].gpus == 2
    mixed = Admission(parse_cluster("v100:2x4,v100:1x2"), catalog())
    with refusal("gpus: 4: must be all GPUs of its nodes where it is exclusive, and nodes of v100 have 2 or 4"):
        mixed.admit(Submission(command=["t"], gpus=4, exclusive=True), "j", "ann", 0.0)


@pytest.mark.parametrize("workdir", ["/data", "/data/x", "/home/ann", "/data//x/"])
def test_folders_that_may_be_worked_in(workdir: str) -> None:
    assert admit(workdir=workdir)[1].workdir == workdir.replace("//", "/").rstrip("/")


def test_without_roots_any_absolute_folder_may_be_worked_in() -> None:
    rules = Admission(RULES.topology, RULES.catalog)
    assert rules.admit(Submission(command=["t"], workdir="/etc"), "j", "ann", 0.0)[1].workdir == "/etc"


@pytest.mark.parametrize(
    ("shape", "kinds", "gang"),
    [
        (Reshape(8), None, (8, 8, 8)),
        (Reshape(2, 1, 99), None, (2, 1, 8)),
        (Reshape(2, 1, 99), ["k80"], (2, 1, 6)),
        (Reshape(6, None, 99), ["v100", "k80"], (6, 6, 8)),
        (Reshape(3, 3, 3), ["v100"], (3, 3, 3)),
    ],
)
def test_the_most_gpus_of_a_gang_are_those_installed(
    shape: Reshape, kinds: list[str] | None, gang: tuple[int, int, int]
) -> None:
    assert RULES.gang(shape, kinds) == gang


LIMITS: dict[str, tuple[dict[str, object], BatchLimits | None]] = {
    "a fixed batch has none": ({"batch_size": 8}, None),
    "the local batch is at most what the GPUs share": (
        {"gpus": 3, "batch_size": 8, "max_batch_size": 8},
        BatchLimits(8, 8, 1, 3),
    ),
    "the least local batch may be the most": (
        {"gpus": 2, "batch_size": 9, "max_batch_size": 9, "min_local_batch": 5},
        BatchLimits(9, 9, 5, 5),
    ),
}


@pytest.mark.parametrize(("fields", "limits"), LIMITS.values(), ids=LIMITS.keys())
def test_the_limits_of_an_adaptive_batch(fields: dict[str, object], limits: BatchLimits | None) -> None:
    assert admit(**fields)[0].limits == limits


def test_any_python_may_keep_the_store() -> None:
    assert admit(resizes="in_place", command=["/opt/bin/python3.11", "t"])[1].in_place
    assert not admit(resizes="restart", command=["./t"])[1].in_place
