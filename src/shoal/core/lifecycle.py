"""The life cycle of a job as a table of transitions.

The state changes a job's ``JobState`` only by this table; the diagram in the documentation is drawn from it.
"""

from enum import IntEnum, StrEnum


class JobState(IntEnum):
    """A job's state. Images and tables of ended jobs hold the numbers, so new states go to the end."""

    PENDING = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3
    HELD = 4
    COMPLETED = 5
    FAILED = 6
    CANCELLED = 7
    CANCELLING = 8
    SUSPENDED = 9

    @property
    def live(self) -> bool:
        """Whether the job has not ended. A live job gets a verdict, unless it is ``HELD`` or ``CANCELLING``.

        A job is held after a crash, by a person, or for a condition such as the end of another job.
        """
        return self not in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


class Trigger(StrEnum):
    """Causes of a change of a job's state: commands (imperative) and events (past tense)."""

    START = "start"
    STOP = "stop"
    RESIZE = "resize"
    STARTED = "started"
    MEASURED = "measured"
    STOPPED = "stopped"
    COMPLETED = "completed"
    CRASHED = "crashed"
    HELD_BACK = "crashed, to be tried again later"
    WAITS = "held, or waits for a condition"
    RELEASED = "released"
    GAVE_UP = "crashed too often"
    CANCEL_REQUESTED = "cancel requested"
    TIMED_OUT = "time limit reached"
    CANCELLED = "cancelled"
    SUSPEND = "suspend"
    SUSPENDED = "suspended"
    RESUME = "resume"
    RESUMED = "resumed"


_S = JobState
_T = Trigger
WITH_RUN = (_S.STARTING, _S.RUNNING, _S.STOPPING, _S.SUSPENDED)
"""States of a job that has a run."""

TRANSITIONS: dict[tuple[JobState, Trigger], JobState] = {
    (_S.PENDING, _T.START): _S.STARTING,
    (_S.STARTING, _T.STARTED): _S.RUNNING,
    (_S.RUNNING, _T.MEASURED): _S.RUNNING,
    (_S.STARTING, _T.RESIZE): _S.STARTING,
    (_S.RUNNING, _T.RESIZE): _S.STARTING,
    (_S.STARTING, _T.STOP): _S.STOPPING,
    (_S.RUNNING, _T.STOP): _S.STOPPING,
    (_S.STOPPING, _T.STOPPED): _S.PENDING,
    (_S.RUNNING, _T.SUSPEND): _S.SUSPENDED,
    (_S.SUSPENDED, _T.SUSPENDED): _S.SUSPENDED,
    (_S.SUSPENDED, _T.RESUME): _S.STARTING,
    (_S.STARTING, _T.RESUMED): _S.RUNNING,
    (_S.SUSPENDED, _T.RESUMED): _S.RUNNING,
    (_S.STARTING, _T.SUSPENDED): _S.SUSPENDED,
    **{(s, _T.COMPLETED): _S.COMPLETED for s in WITH_RUN},
    **{(s, _T.CRASHED): _S.PENDING for s in WITH_RUN},
    **{(s, _T.HELD_BACK): _S.HELD for s in WITH_RUN},
    (_S.SUSPENDED, _T.STOP): _S.STOPPING,
    (_S.PENDING, _T.WAITS): _S.HELD,
    (_S.HELD, _T.RELEASED): _S.PENDING,
    **{(s, _T.GAVE_UP): _S.FAILED for s in WITH_RUN},
    **{(s, _T.CANCEL_REQUESTED): _S.CANCELLING for s in (_S.PENDING, *WITH_RUN, _S.HELD)},
    **{(s, _T.TIMED_OUT): _S.FAILED for s in (*WITH_RUN, _S.CANCELLING)},
    **{(s, _T.CANCELLED): _S.CANCELLED for s in (_S.PENDING, *WITH_RUN, _S.HELD, _S.CANCELLING)},
}


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> PENDING: submitted"]
    lines += [f"    {a.name} --> {b.name}: {trigger.value}" for (a, trigger), b in TRANSITIONS.items()]
    lines += [f"    {state.name} --> [*]" for state in JobState if not state.live]
    return "\n".join(lines)
