"""The story that every provider is held to, on the fake Kubernetes: real agents in pods that are processes."""

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.provider.kubernetes_sites import KubeSite, fake_site, wait_for
from tests.provider.provider_story import run_story

from shoal.provider.kubernetes.options import KubernetesOptions, Place
from shoal.provider.kubernetes.provider import KubernetesProvider, abilities_of


@dataclass(frozen=True, slots=True)
class KubernetesEngine:
    """A fake Kubernetes with two nodes, and its faults."""

    site: KubeSite
    provider: KubernetesProvider

    def close_as_stranger(self, ref: str) -> None:
        namespace, name, _ = ref.split("/")
        self.site.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def away(self) -> AbstractContextManager[None]:
        assert self.site.fake is not None
        return self.site.fake.away()


def test_kubernetes_keeps_the_promises_of_a_provider(tmp_path: Path) -> None:
    with fake_site(tmp_path / "pods", gpus=1) as site:
        options = KubernetesOptions(
            "pilot", Place("shoal", "an-image"), home=str(tmp_path / "home"), python=sys.executable
        )
        provider = KubernetesProvider(site.api, options, "1a2b", abilities_of(options))
        try:
            seconds = run_story(lambda _: KubernetesEngine(site, provider), tmp_path)
            print("\n".join(f"{spent:6.2f} s  {step}" for step, spent in seconds.items()), file=sys.stderr)
            wait_for(lambda: not any(one.state.open for one in provider.seen()))
        finally:
            provider.stop()
