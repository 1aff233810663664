"""Messages about searches: reports of a search on its trials, and the rows that pages show."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

from shoal.wire.fields import JobName, Natural, Text

TrialState: TypeAlias = Literal["waiting", "training", "trained", "given_up", "lost"]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class TrialReport(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A trial: its parameters, its legs as jobs, and pairs (fraction of its training, loss at that point).

    ``given_up``: other trials do better. ``lost``: its job failed. ``place`` is where its checkpoints are.
    """

    trial: Natural
    state: TrialState
    parameters: dict[Text, Text] = field(default_factory=dict)
    jobs: Annotated[list[JobName], Meta(max_length=1000)] = field(default_factory=list)
    losses: Annotated[list[tuple[Fraction, float | None]], Meta(max_length=1000)] = field(default_factory=list)
    why: Text = ""
    place: Text = ""


class SearchReport(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A search as it stands: the app scheduler, whether it is over, the best trial, and the trials that have begun."""

    scheduler: Text
    over: bool = False
    best: Natural | None = None
    trials: Annotated[list[TrialReport], Meta(max_length=2000)] = field(default_factory=list)


class SearchRow(Struct, frozen=True, kw_only=True):
    """The last report of an app's search; ``at`` in Unix seconds."""

    app: str
    tenant: str
    at: float
    report: SearchReport
