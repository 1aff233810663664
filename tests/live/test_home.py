"""The home folder of a control plane and its settings: bounds, privacy, and errors that name the setting."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.live.home import Settings, make_home
from shoal.scenario.scenario import Scenario


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"lease": 0.4}, "lease"), ({"lease": 3601.0}, "lease"), ({"max_grace": -1.0}, "max-grace"),
     ({"max_grace": 3601.0}, "max-grace")],
)  # fmt: skip
def test_settings_out_of_bounds_are_refused_by_name_and_the_bounds_themselves_are_not(
    changed: dict[str, float], field: str, tmp_path: Path
) -> None:
    settings = Settings(tmp_path, Scenario(parse_cluster("gpu:1x1"), "fifo"), lease=3600.0, max_grace=3600.0)
    assert replace(settings, lease=0.5, max_grace=0.0).lease == 0.5
    with pytest.raises(InputError) as refused:
        replace(settings, **changed)  # type: ignore[arg-type]
    assert (refused.value.field, refused.value.value) == (field, next(iter(changed.values())))


def test_a_new_home_is_private_and_has_a_lock(tmp_path: Path) -> None:
    make_home(tmp_path / "a" / "home")
    assert stat.S_IMODE((tmp_path / "a" / "home").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "a" / "home").iterdir()] == ["lock"]


def test_a_home_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="name a folder this user may write to") as refused:
        make_home(tmp_path / "file" / "home")
    assert (refused.value.field, refused.value.value) == ("home", str(tmp_path / "file" / "home"))
