"""Submissions to a control plane on its journal, without HTTP: identifiers and keys, and what survives a restart."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.live.control_plane import ControlPlane
from shoal.live.home import Settings, open_control_plane
from shoal.scenario.scenario import Scenario
from shoal.wire.messages import Submission

Opened: TypeAlias = Callable[[], AbstractContextManager[ControlPlane]]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Opens the control plane of one home, as often as one likes, one after the other."""
    settings = Settings(tmp_path, Scenario(parse_cluster("gpu:1x2"), "fifo"))
    return lambda: open_control_plane(settings)


def submit(plane: ControlPlane, *jobs: Submission) -> list[str]:
    return plane.submit(jobs, "team").result(timeout=60)


def job(key: str = "", gpus: int = 1) -> Submission:
    return Submission(command=["train"], name="a", gpus=gpus, key=key)


def test_no_two_jobs_of_a_batch_get_the_same_identifier(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.job_ids._ALPHABET", "ab")  # 32 identifiers in all, so that chance repeats itself
    with opened() as plane:
        ids = submit(plane, *(job() for _ in range(16))) + submit(plane, *(job() for _ in range(16)))
        assert sorted(row.id for row in plane.jobs(None)) == sorted(set(ids))
    assert len(set(ids)) == 32


def test_the_key_of_a_submission_that_was_refused_leads_nowhere(opened: Opened) -> None:
    with opened() as plane:
        with pytest.raises(InputError, match=r"jobs\[1\]\.gpus"):
            submit(plane, job("mine"), job("other", gpus=3))
        (id,) = submit(plane, job("mine"))
        assert [row.id for row in plane.jobs(None)] == [id]


def test_the_same_key_is_the_same_job_in_one_batch_in_the_next_and_after_a_restart(opened: Opened) -> None:
    with opened() as plane:
        first, again, other = submit(plane, job("mine"), job("mine"), job("other"))
        assert submit(plane, job("other"), job("mine")) == [other, first]
    with opened() as plane:
        assert submit(plane, job("mine")) == [first] == [again]
        assert {row.id for row in plane.jobs(None)} == {first, other}
