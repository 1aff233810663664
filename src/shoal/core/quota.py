"""The quota of a tenant: its limits, and the GPUs that it gets back on demand."""

from dataclasses import dataclass, fields

from shoal.core.errors import InputError
from shoal.core.spec_text import make
from shoal.core.units import TenantId

_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    """A tenant's most waiting jobs, its most GPUs at once (None: any number), and the GPUs guaranteed to it.

    Others may borrow guaranteed GPUs that the tenant does not use; they lose them when it has jobs for them.
    """

    queued: int | None = None
    gpus: int | None = None
    guaranteed: int = 0

    def __post_init__(self) -> None:
        for name in ("queued", "gpus", "guaranteed"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _MOST:
                raise ValueError(f"{name} must be from 0 to {_MOST:,}, not {value}")
        if self.gpus is not None and self.guaranteed > self.gpus:
            raise ValueError(f"guaranteed ({self.guaranteed}) must not be above gpus ({self.gpus}), the most at once")

    def describe(self, tenant: TenantId) -> str:
        """Return the quota as text that ``parse_quota`` reads: ``ann:gpus=8,guaranteed=4``."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"{tenant}:{','.join(f'{key}={value}' for key, value in given.items())}"


NO_QUOTA = Quota()


def parse_quota(text: str) -> tuple[TenantId, Quota]:
    """Return the tenant and the quota in ``TENANT:key=value,…``; keys are ``queued``, ``gpus`` and ``guaranteed``."""
    tenant, _, options = text.rpartition(":")
    if not tenant:
        raise InputError("quotas", text, "write TENANT:queued=N,gpus=N,guaranteed=N")
    return tenant, make(f"quota of {tenant}", Quota, options, {f.name: int for f in fields(Quota)})
