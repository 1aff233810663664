"""One decision on a written-down problem: jobs, speeds and capacities in a JSON file; shares, objective and gap out."""

from shoal.problem.answer import solve
from shoal.problem.written import Entity, Job, Pair, Problem, read_problems

__all__ = ["Entity", "Job", "Pair", "Problem", "read_problems", "solve"]
