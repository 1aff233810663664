"""Kubernetes as a provider: `objects` builds what is created, `reading` reads what is listed, `provider` calls."""

from shoal.provider.kubernetes.provider import make_kubernetes as make_provider

__all__ = ["make_provider"]
