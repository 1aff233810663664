"""Slurm as a provider: `commands` builds command lines, `output` reads their output, `provider` runs them."""

from shoal.provider.slurm.provider import make_slurm as make_provider

__all__ = ["make_provider"]
