"""Commands for a new seating: jobs are stopped and start again from their checkpoint, or are suspended in place."""

from dataclasses import dataclass

from shoal.core.columns import IntRow
from shoal.core.commands import Command, Resize, Resume, Start, Stop, Suspend
from shoal.core.decision import Seating, Verdicts
from shoal.core.snapshot import Snapshot
from shoal.engine.suspension import to_suspend


@dataclass(frozen=True, slots=True)
class StopStartPlanner:
    """Plans stops and suspensions first, then resizes, then starts and resumptions, each in order of admission."""

    def plan(self, snapshot: Snapshot, verdicts: Verdicts, seating: Seating) -> tuple[Command, ...]:
        """Return the commands; none for jobs that stay as they are."""
        if not seating.leaving and not seating.seated:
            return ()
        columns = snapshot.columns
        rows = columns.rows
        leaving, suspended = sorted(seating.leaving), snapshot.suspensions.runs
        away = to_suspend(snapshot, leaving)
        plan: list[Command] = [
            (Suspend if i in away else Stop)(rows.item(i), columns.int_at(IntRow.INCARNATION, i)) for i in leaving
        ]
        starts: list[Command] = []
        for i in sorted(seating.seated):
            job, incarnation = rows.item(i), columns.int_at(IntRow.INCARNATION, i)
            runs = columns.int_at(IntRow.HELD, i) > 0
            if job in suspended:
                starts.append(Resume(job, incarnation, seating.seated[i]))
                continue
            order = Resize if runs else Start
            partner = int(verdicts.partners[i]) if verdicts.partners is not None else -1
            if partner >= 0 and not verdicts.gpus[partner]:
                partner = -1  # placement refused the partner
            shared = rows.item(partner) if partner >= 0 else None
            command = order(job, incarnation + 1, seating.seated[i], verdicts.batches.get(i), shared)
            (plan if runs else starts).append(command)
        return (*plan, *starts)
