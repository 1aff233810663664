"""The home folder of a control plane and its settings: bounds, privacy, and errors that name the setting."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from tests.refusals import refusal

from shoal.core.topology import parse_cluster
from shoal.live.home import Settings, make_home
from shoal.scenario.scenario import Scenario


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"lease": 0.4}, "lease: 0.4: must lie between 0.5 and 3600 seconds"),
        ({"lease": 3601.0}, "lease: 3601.0: must lie between 0.5 and 3600 seconds"),
        ({"max_grace": -1.0}, "max-grace: -1.0: must lie between 0 and 3600 seconds"),
        ({"max_grace": 3601.0}, "max-grace: 3601.0: must lie between 0 and 3600 seconds"),
    ],
)
def test_settings_out_of_bounds_are_refused_by_name_and_the_bounds_themselves_are_not(
    changed: dict[str, float], sentence: str, tmp_path: Path
) -> None:
    settings = Settings(tmp_path, Scenario(parse_cluster("gpu:1x1"), "fifo"), lease=3600.0, max_grace=3600.0)
    assert replace(settings, lease=0.5, max_grace=0.0).lease == 0.5
    with refusal(sentence):
        replace(settings, **changed)  # type: ignore[arg-type]


def test_a_cluster_has_at_most_20_000_nodes(tmp_path: Path) -> None:
    Settings(tmp_path, Scenario(parse_cluster("gpu:20000x1"), "fifo"))
    too_many = "has 20,001 nodes, and a control plane serves at most 20,000: run several"
    with refusal(f"cluster: 'gpu:20001x1': {too_many}"):
        Settings(tmp_path, Scenario(parse_cluster("gpu:20001x1"), "fifo"))


def test_a_new_home_is_private_and_has_a_lock(tmp_path: Path) -> None:
    make_home(tmp_path / "a" / "home")
    assert stat.S_IMODE((tmp_path / "a" / "home").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "a" / "home").iterdir()] == ["lock"]


def test_a_home_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    with refusal(f"home: '{home}': cannot be written: Not a directory; name a folder this user may write to"):
        make_home(home)
