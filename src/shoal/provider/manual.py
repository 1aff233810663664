"""The provider `manual`: operators or other programs start the agents, and nothing is opened or closed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.spec_text import split_options
from shoal.core.units import Seconds
from shoal.provider.protocol import Abilities, Allocation, EngineRefusal, Seen, Site


@dataclass(frozen=True, slots=True)
class ManualProvider:
    """Nodes whose agents connect by themselves."""

    abilities: Abilities = field(default_factory=Abilities)

    def survey(self) -> Sequence[Site]:
        """Return no nodes: they are declared, or join by themselves."""
        return ()

    def seen(self) -> Sequence[Seen]:
        """Return no allocation."""
        return ()

    def open(self, allocation: Allocation) -> None:
        """Refuse: no agent can be started."""
        raise EngineRefusal(f"start the agent of {allocation.node} by hand")

    def close(self, ref: str, grace: Seconds) -> None:
        """Do nothing."""

    def ask(self, kinds: Mapping[str, int]) -> None:
        """Do nothing."""


def make_provider(options: str, _: object) -> ManualProvider:
    """Return the provider, which takes no options."""
    split_options("on manual", options, ())
    return ManualProvider()
