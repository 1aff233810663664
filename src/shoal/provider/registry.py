"""Providers by name, as ``shoal serve --on NAME:key=value,…`` names them; each is imported when it is first used."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from shoal.core.errors import InputError
from shoal.core.spec_text import split_name
from shoal.provider.protocol import Provider

ProviderMaker = Callable[[str, Path], Provider]
"""Takes the text ``key=value,…`` after the name, and the control plane's home; ``InputError`` for values it refuses."""

PROVIDERS = {
    "kubernetes": "shoal.provider.kubernetes",
    "local": "shoal.provider.local",
    "manual": "shoal.provider.manual",
    "ray": "shoal.provider.ray",
    "slurm": "shoal.provider.slurm",
}
"""By name, the module whose function ``make_provider`` is the provider's maker."""


def make_provider(spec: str, home: Path) -> tuple[str, Provider]:
    """Return the name of a provider and the provider, for ``name:key=value,…``."""
    name, options = split_name("on", spec, PROVIDERS)
    try:
        maker: ProviderMaker = import_module(PROVIDERS[name]).make_provider
    except (ImportError, AttributeError) as error:
        raise InputError("on", name, f"cannot be used in this installation: {error}") from error
    return name, maker(options, home)
