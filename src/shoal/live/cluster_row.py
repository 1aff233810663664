"""The summary of a live cluster."""

from shoal.core.lifecycle import JobState
from shoal.engine.state import State
from shoal.live.holdings import Holdings
from shoal.live.views import ClusterViews
from shoal.wire import messages as wire

_RUNNING = (JobState.RUNNING, JobState.STARTING, JobState.CANCELLING)


def cluster_row(
    state: State,
    views: ClusterViews,
    holdings: Holdings,
    live: int,
    *,
    version: str,
    policy: str,
    cluster: str,
    short_of_disk: str,
) -> wire.ClusterRow:
    """Return the cluster's totals; ``holdings`` and the number of ``live`` jobs were read under the lock."""
    running = sum(account.state in _RUNNING for account, _ in holdings.placed)
    return wire.ClusterRow(
        version=version,
        protocol=wire.PROTOCOL,
        policy=policy,
        cluster=cluster,
        now=views.epoch + views.now,
        up_gpus=state.topology.total_gpus,
        used_gpus=sum(views.used_gpus(holdings).values()),
        running=running,
        waiting=live - running,
        ended=views.accounts.submitted - live,
        decisions=state.cycle,
        short_of_disk=short_of_disk,
    )
