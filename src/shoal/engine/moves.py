"""Commands for a new seating, for jobs that checkpoint and resume."""

from dataclasses import dataclass

from shoal.core.commands import Command, Resize, Start, Stop
from shoal.core.decision import Seating, Verdicts
from shoal.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class StopStartPlanner:
    """Plans stops first, then resizes, then starts, each in order of admission."""

    def plan(self, snapshot: Snapshot, verdicts: Verdicts, seating: Seating) -> tuple[Command, ...]:
        """Return the commands; none for jobs that stay as they are."""
        if not seating.leaving and not seating.seated:
            return ()
        columns = snapshot.columns
        rows, incarnation, held = columns.rows, columns.incarnation, columns.held
        plan: list[Command] = [Stop(int(rows[i]), int(incarnation[i])) for i in sorted(seating.leaving)]
        starts: list[Command] = []
        for i in sorted(seating.seated):
            order = Resize if held[i] else Start
            partner = int(verdicts.partners[i]) if verdicts.partners is not None else -1
            if partner >= 0 and not verdicts.gpus[partner]:
                partner = -1  # placement refused the partner
            command = order(
                int(rows[i]),
                int(incarnation[i]) + 1,
                seating.seated[i],
                verdicts.batches.get(i),
                int(rows[partner]) if partner >= 0 else None,
            )
            (plan if held[i] else starts).append(command)
        return (*plan, *starts)
