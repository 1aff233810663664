"""The story of all providers, on agents of this machine."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.provider.provider_story import run_story

from shoal.core.topology import Node
from shoal.provider.local import LocalProvider
from shoal.provider.protocol import EngineAway, Seen, Site

NODES = (Node("one", "gpu", 1), Node("two", "gpu", 1))


class FlakyLocal(LocalProvider):
    """A local provider that can be made not to answer."""

    is_away = False

    def survey(self) -> Sequence[Site]:
        if self.is_away:
            raise EngineAway("asleep")
        return LocalProvider.survey(self)


@dataclass
class LocalEngine:
    """This machine as an engine."""

    provider: FlakyLocal
    refs: list[Seen] = field(default_factory=list)

    def close_as_stranger(self, ref: str) -> None:
        os.kill(int(ref), signal.SIGTERM)

    @contextmanager
    def away(self) -> Iterator[None]:
        self.provider.is_away = True
        try:
            yield
        finally:
            self.provider.is_away = False


def test_local_tells_the_story(tmp_path: Path) -> None:
    provider = FlakyLocal(lambda: NODES, tmp_path / "home")
    try:
        seconds = run_story(lambda _: LocalEngine(provider), tmp_path)
    finally:
        for one in provider.seen():
            if one.state.open:
                with suppress(ProcessLookupError):
                    os.kill(int(one.ref), signal.SIGKILL)
    print(*(f"{took:6.2f} s  {what}" for what, took in seconds.items()), sep="\n")
