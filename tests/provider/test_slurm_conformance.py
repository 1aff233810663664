"""The story that every provider is held to, on the fake Slurm and, with ``make test-engines``, on a real one."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.provider.provider_story import run_story
from tests.provider.slurm_sites import SlurmSite, command, fake_site, real_site, wait_for

from shoal.provider.slurm.commands import SlurmOptions
from shoal.provider.slurm.provider import SlurmProvider


@dataclass(frozen=True, slots=True)
class SlurmEngine:
    """A Slurm with two nodes, and its faults."""

    site: SlurmSite
    provider: SlurmProvider

    def close_as_stranger(self, ref: str) -> None:
        command(self.site, "scancel", ref)

    def away(self) -> AbstractContextManager[None]:
        return self.site.away()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engines)])
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmSite]:
    make = real_site if request.param == "real" else fake_site
    with tempfile.TemporaryDirectory() as name, make(Path(name) / "slurm", ("n1", "n2")) as made:
        for variable in ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH", "FAKE_SLURM"):
            if variable in made.environment:
                monkeypatch.setenv(variable, made.environment[variable])
        yield made


def test_slurm_keeps_the_promises_of_a_provider(
    site: SlurmSite, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    provider = SlurmProvider.connect(SlurmOptions(), tmp_path / "slurm")
    try:
        away = 30.0 if request.node.callspec.params["site"] == "real" else 0.5
        seconds = run_story(lambda _: SlurmEngine(site, provider), tmp_path, away)
        print("\n".join(f"{spent:6.2f} s  {step}" for step, spent in seconds.items()), file=sys.stderr)
    finally:
        for one in provider.seen():
            if one.state.open:
                provider.close(one.ref, 0.0)
        wait_for(lambda: not any(one.state.open for one in provider.seen()))
