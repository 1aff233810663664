"""The pieces of logs that an agent was asked for and that have not reached the control plane yet."""

from shoal.agent.workspace import Workspace
from shoal.wire.messages import LogAnswer, LogRead

_MOST_READS = 16
"""The most pieces of logs in one report, which bounds its size."""


class LogAnswers:
    """Reads each requested piece once and keeps it until the control plane has it."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._answers: dict[int, LogAnswer] = {}
        self._answered: set[int] = set()

    def follow(self, reads: list[LogRead], answered: tuple[int, ...]) -> bool:
        """Read the requested pieces, drop those that reached the control plane; return whether any is new."""
        asked = {read.read: read for read in reads}
        self._answered = {number for number in (*self._answered, *answered) if number in asked}
        unanswered = asked.keys() - self._answered
        self._answers = {number: answer for number, answer in self._answers.items() if number in unanswered}
        new = [asked[number] for number in sorted(unanswered - self._answers.keys())]
        for read in new[: _MOST_READS - len(self._answers)]:
            self._answers[read.read] = self._workspace.read_log(read)
        return bool(new)

    @property
    def pieces(self) -> list[LogAnswer]:
        """The pieces to send."""
        return list(self._answers.values())
