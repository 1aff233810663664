"""Pollux's table 3 with few trials: a study ends sooner under Pollux; without Optuna the error names the extra."""

import sys
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.research.repro.context import ReproContext
from shoal.research.repro.hpo import PROFILES, Study, measure
from shoal.research.repro.registry import chosen

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
HERE = all((DATA / folder).is_dir() for folder in PROFILES)


def test_a_study_ends_sooner_under_pollux() -> None:
    pytest.importorskip("optuna", reason="needs the extra hpo")
    if not HERE:
        pytest.skip("the public files are not here")
    pollux, fixed = (measure(DATA, policy, 0, 8) for policy in ("pollux", "fifo"))
    assert pollux.minutes < fixed.minutes
    assert pollux.hours < fixed.hours


def test_a_study_begins_as_many_trials_as_run_at_once() -> None:
    pytest.importorskip("optuna", reason="needs the extra hpo")
    study = Study.of(6, 0, adaptive=False)
    begun = study.begin(0.0)
    assert [job.id for job, _ in begun] == ["trial-0", "trial-1", "trial-2", "trial-3"]
    assert [speed for _, speed in begun] == [1.0 / settings["width"] for settings in study.settings]
    assert study.begin(1.0) == []


def test_without_optuna_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    if not HERE:
        pytest.skip("the public files are not here")
    (one,) = chosen(["pollux-table3"])
    with pytest.raises(InputError, match="needs the extra hpo"):
        one.tables(ReproContext(DATA, quick=True))
