import math
from typing import Any

import pytest

from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError
from shoal.workload.schema import Job, Workload

BASE: dict[str, Any] = {"id": "a", "submitted": 1.0, "gpus": 2, "work": 10.0}


def job(**fields: Any) -> Job:
    return Job(**{**BASE, **fields})


@pytest.mark.parametrize(
    ("fields", "field", "hint"),
    [
        ({"submitted": math.nan}, "submitted", "finite"),
        ({"submitted": -1.0}, "submitted", "at least 0"),
        ({"submitted": math.inf}, "submitted", "finite"),
        ({"work": 0.0}, "work", "above 0"),
        ({"work": math.nan}, "work", "finite"),
        ({"gpus": 0}, "gpus", "from 1"),
        ({"gpus": 2**31}, "gpus", "2147483647"),
        ({"id": ""}, "id", "empty"),
        ({"tenant": ""}, "tenant", "empty"),
        ({"weight": 0.0}, "weight", "above 0"),
        ({"min_gpus": 0}, "min_gpus", "from 1"),
        ({"min_gpus": 4, "max_gpus": 3}, "min_gpus", "max_gpus, which is 3"),
        ({"min_gpus": 3, "max_gpus": 4}, "gpus", "3 and 4"),
        ({"max_gpus": 1}, "min_gpus", "which is 1"),
        ({"declared_work": -1.0}, "declared_work", "above 0"),
        ({"declared_work": 0.0}, "declared_work", "above 0"),
        ({"declared_work": 5.0, "declares_work": False}, "declared_work", "declares_work is false"),
        ({"model": ""}, "model", "empty"),
        ({"batch_size": 0}, "batch_size", "from 1"),
        ({"batch_schedule": ((1.0, 8),)}, "batch_schedule", "needs a model"),
        ({"model": "m", "batch_schedule": ((5.0, 8), (5.0, 16))}, "batch_schedule", "must ascend"),
        ({"model": "m", "batch_schedule": ((5.0, 8), (2.0, 16))}, "batch_schedule", "must ascend"),
        ({"model": "m", "batch_schedule": ((10.0, 8),)}, "batch_schedule", "within the work"),
        ({"model": "m", "batch_schedule": ((math.nan, 8),)}, "batch_schedule", "within the work"),
        ({"model": "m", "batch_schedule": ((5.0, 0),)}, "batch_schedule", "batch size"),
        ({"kinds": ()}, "kinds", "at least one"),
        ({"kinds": ("v100", "v100")}, "kinds", "different"),
        ({"deadline": 0.5}, "deadline", "not before submission"),
        ({"restart_seconds": -1.0}, "restart_seconds", "at least 0"),
        ({"checkpoint_gb": math.nan}, "checkpoint_gb", "finite"),
        ({"limits": (8, 64, 1, 8)}, "limits", "needs a model"),
        ({"adaptation": "gns"}, "adaptation", "needs a model"),
        ({"model": "m", "adaptation": "gms"}, "adaptation", "gns"),
        ({"model": "m", "limits": (64, 8, 1, 8)}, "limits", "to the largest"),
        ({"model": "m", "limits": (0, 8, 1, 8)}, "limits", "from 1"),
        ({"model": "m", "limits": (8, 64, 9, 8)}, "limits", "the most per GPU"),
    ],
)
def test_a_job_that_makes_no_sense_cannot_be_made(fields: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        job(**fields)
    assert caught.value.field == field
    assert hint in caught.value.hint


def test_the_spec_is_the_declared_side_of_a_job() -> None:
    rigid = job().spec()
    assert (rigid.work, rigid.min_gpus, rigid.max_gpus, rigid.elastic) == (10.0, 2, 2, False)
    claimed = job(
        declared_work=7.0, min_gpus=1, max_gpus=4, model="m", batch_size=8, batch_schedule=((5.0, 16),)
    ).spec()
    assert (claimed.work, claimed.min_gpus, claimed.max_gpus, claimed.elastic) == (7.0, 1, 4, True)
    assert job(declares_work=False).spec().work is None
    adaptive = job(model="m", limits=(8, 64, 1, 16), adaptation="gns").spec()
    assert (adaptive.limits, adaptive.adaptation) == (BatchLimits(8, 64, 1, 16), "gns")


def test_a_workload_is_in_order_of_submission_and_keeps_the_order_of_equals() -> None:
    jobs = (job(id="late", submitted=5.0), job(id="first"), job(id="second"))
    assert [j.id for j in Workload("w", jobs).jobs] == ["first", "second", "late"]


def test_an_id_names_one_job() -> None:
    with pytest.raises(InputError, match="'a': names two jobs"):
        Workload("w", (job(), job(submitted=2.0)))


def test_a_window_keeps_its_start_leaves_out_its_end_and_restarts_the_clock() -> None:
    jobs = tuple(job(id=str(t), submitted=float(t), deadline=t + 3.0) for t in range(6))
    cut = Workload("w", jobs).window(2.0, 4.0)
    assert [(j.id, j.submitted, j.deadline) for j in cut.jobs] == [("2", 0.0, 3.0), ("3", 1.0, 4.0)]
    with pytest.raises(InputError, match="A < B"):
        Workload("w", jobs).window(4.0, 2.0)


def test_the_first_jobs_are_the_first_submitted() -> None:
    jobs = (job(id="b", submitted=2.0), job(id="a"))
    assert [j.id for j in Workload("w", jobs).first(1).jobs] == ["a"]
    with pytest.raises(InputError, match="at least 1"):
        Workload("w", jobs).first(0)
