"""Messages about past decisions: the snapshot, each job's verdict and reason, and whether replay gives the same.

Times are Unix seconds. Decisions are numbered from 0 on, as in ``shoal replay``.
"""

from msgspec import Struct, field


class DecisionMove(Struct, frozen=True):
    """A command of a decision: ``start``, ``stop``, ``resize``, ``suspend`` or ``resume``, and its job."""

    verb: str
    job: str
    tenant: str


class DecisionRow(Struct, frozen=True, kw_only=True):
    """A decision in a list: when it was made, and which jobs it moved. ``foreign`` counts moves of others' jobs."""

    number: int
    at: float
    moves: list[DecisionMove] = field(default_factory=list)
    foreign: int = 0


class VerdictRow(Struct, frozen=True, kw_only=True):
    """A job in the snapshot of a decision, and its verdict.

    ``state``, ``held``, ``kind`` and ``nodes`` are those before the decision, ``granted`` and ``reason`` its verdict.
    ``numbers`` has the reason's numbers by name.
    """

    job: str
    tenant: str
    state: str
    wanted: int
    held: int
    granted: int
    reason: str
    kind: str | None = None
    nodes: list[str] = field(default_factory=list)
    move: str = ""
    numbers: dict[str, float | str] = field(default_factory=dict)


class DecisionNode(Struct, frozen=True, kw_only=True):
    """A node in the snapshot of a decision; ``free`` are its GPUs that no job held."""

    name: str
    kind: str
    gpus: int
    free: int
    up: bool = True
    drained: bool = False


class DecisionDetail(Struct, frozen=True, kw_only=True):
    """A past decision, made again from the journal.

    ``same``: the policy, asked again, gave the recorded verdicts and commands; else ``difference`` says what differs,
    and the rows show the new answer. ``gap`` is how far the choice can be from the best, as a fraction, where the
    policy proves it. ``jobs`` are the caller's, those that moved first, at most ``limit`` of ``all_jobs``; ``foreign``
    are other tenants' jobs, with ``foreign_gpus`` granted to them. ``seconds`` is the CPU time of the one decision.
    """

    number: int
    at: float
    policy: str
    same: bool
    difference: str
    review_at: float | None
    gpus: int
    granted: int
    all_jobs: int
    jobs: list[VerdictRow]
    nodes: list[DecisionNode]
    foreign: int = 0
    foreign_gpus: int = 0
    gap: float | None = None
    seconds: float = 0.0
