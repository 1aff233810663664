"""One decision on a written-down problem: jobs, speeds and capacities in a JSON file; shares, objective and gap out."""

from shoal.research.problem.answer import solve
from shoal.research.problem.written import Entity, WrittenJob, WrittenPair, WrittenProblem, read_problems

__all__ = ["Entity", "WrittenJob", "WrittenPair", "WrittenProblem", "read_problems", "solve"]
