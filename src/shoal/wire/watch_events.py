"""Events of ``/v1/watch``, which the server encodes row by row: these types describe them."""

from typing import Any, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

from shoal.wire.decision_messages import DecisionRow
from shoal.wire.messages import ClusterRow, NodeRow, TenantRow
from shoal.wire.policy_messages import PolicyInForce
from shoal.wire.search_messages import SearchRow
from shoal.wire.training_messages import TrainingPoint
from shoal.wire.watch_messages import FairnessSample, QueueRow, SeatRow, UsageRow

_Row = TypeVar("_Row")


class ChangedRows(Struct, Generic[_Row], frozen=True, kw_only=True):
    """Rows of one view that changed, and keys of rows that are gone; with ``reset`` they are all rows."""

    reset: bool
    gone: list[str]
    rows: dict[str, _Row]


class ChangedViews(Struct, frozen=True, kw_only=True):
    """What changed in each of the views that are watched.

    In the view ``job`` the row ``detail`` is the job's detail without its story, with the queue's row as ``job``; the
    other rows are the moments of its story.
    """

    cluster: ChangedRows[ClusterRow] | UnsetType = UNSET
    nodes: ChangedRows[NodeRow] | UnsetType = UNSET
    jobs: ChangedRows[QueueRow] | UnsetType = UNSET
    running: ChangedRows[QueueRow] | UnsetType = UNSET
    tenants: ChangedRows[TenantRow] | UnsetType = UNSET
    usage: ChangedRows[UsageRow] | UnsetType = UNSET
    fairness: ChangedRows[FairnessSample] | UnsetType = UNSET
    seats: ChangedRows[SeatRow] | UnsetType = UNSET
    decisions: ChangedRows[DecisionRow] | UnsetType = UNSET
    policy: ChangedRows[PolicyInForce] | UnsetType = UNSET
    searches: ChangedRows[SearchRow] | UnsetType = UNSET
    job: ChangedRows[Any] | UnsetType = UNSET
    training: ChangedRows[TrainingPoint] | UnsetType = UNSET


class ViewsEvent(Struct, frozen=True, kw_only=True):
    """Data of an event ``changed``: the server's time, in Unix seconds, and what changed."""

    now: float
    views: ChangedViews
