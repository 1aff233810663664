"""Questions are simulated in a process of their own, which runs no code but Shoal's."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.core.errors import InputError
from shoal.live.control_plane import ControlPlane
from shoal.scenario.scenario import Scenario
from shoal.scenario.specs import read_cluster
from shoal.serve.forecaster import Forecaster
from shoal.store.journal import SqliteJournal
from shoal.wire.messages import WhatIf


def forecaster(folder: Path, **header: Any) -> Forecaster:
    """A forecaster on a new journal; of the control plane it reads only the clock."""
    settings = Scenario(read_cluster("v100:1x4"), "fifo").settings("live")
    journal = SqliteJournal.begin(folder / "journal", {**settings, **header})
    journal.close()
    clock = SimpleNamespace(cluster=lambda: SimpleNamespace(now=5.0), about=SimpleNamespace(epoch=0.0))
    return Forecaster(cast(ControlPlane, clock), folder / "journal")


def test_a_question_runs_no_module_of_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("open('loaded', 'w')\nraise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    answer = forecaster(tmp_path).answer(WhatIf(seeds=1), None)
    assert answer["runs"][0]["label"] == "as it is"
    assert not (tmp_path / "loaded").exists()


def test_a_failed_simulation_is_logged_and_its_text_kept_from_the_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = forecaster(tmp_path, restart_cost=["no", "text"])
    with caplog.at_level(logging.ERROR), pytest.raises(InputError) as refused:
        broken.answer(WhatIf(seeds=1), None)
    assert refused.value.hint == "could not be simulated; the control plane's log has the reason"
    assert "Traceback" in caplog.records[0].__dict__["stderr"]
