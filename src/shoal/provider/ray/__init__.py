"""Ray as a provider: `bridge` is the program that imports Ray, `connection` runs it, `rows` reads its answers."""

from shoal.provider.ray.provider import make_ray as make_provider

__all__ = ["make_provider"]
