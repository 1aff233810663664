"""Messages about policies. Times are Unix seconds."""

from msgspec import Struct, field

from shoal.wire.fields import Text


class PolicyRow(Struct, frozen=True):
    """A policy of this version: its name, a line on its rule, and the paper it comes from."""

    name: str
    summary: str
    paper: str


class PolicyChoice(Struct, forbid_unknown_fields=True, frozen=True):
    """A policy with its options, such as ``gavel.max-min:aware=false``."""

    policy: Text


class ShadowChoice(Struct, forbid_unknown_fields=True, frozen=True):
    """The policy to ask beside the deciding one; null to ask none."""

    policy: Text | None


class ShadowDifference(Struct, frozen=True):
    """A job to which a shadow policy would have granted ``would`` GPUs instead of ``granted``, and its reason."""

    job: str
    tenant: str
    granted: int
    would: int
    reason: str


class ShadowDecision(Struct, frozen=True, kw_only=True):
    """A decision that a shadow policy would have made differently: the first jobs of ``differing``."""

    number: int
    at: float
    differing: int
    jobs: list[ShadowDifference] = field(default_factory=list)


class ShadowUse(Struct, frozen=True):
    """GPU-seconds granted to a tenant while a shadow policy was asked, and those the shadow would have granted."""

    tenant: str
    granted: float
    would: float


class ShadowRow(Struct, frozen=True, kw_only=True):
    """The figures of a shadow policy since it was started: ``compared`` decisions, ``same`` of them alike.

    Each is compared on the cluster's real state; the effects of what the shadow would have changed earlier are left
    out. Decisions that came faster than its share of a core allows are ``skipped``. ``would_run`` counts verdicts that
    give GPUs to a job that got none, ``would_wait`` the reverse, ``other_size`` grants of another size. ``failed`` is
    why it ended.
    """

    policy: str
    since: float
    compared: int = 0
    same: int = 0
    skipped: int = 0
    would_run: int = 0
    would_wait: int = 0
    other_size: int = 0
    seconds: float = 0.0
    failed: str = ""
    tenants: list[ShadowUse] = field(default_factory=list)
    decisions: list[ShadowDecision] = field(default_factory=list)


class PolicyInForce(Struct, frozen=True):
    """The policy that decides, and the figures of a shadow policy, if one is asked beside it."""

    policy: str
    shadow: ShadowRow | None = None
