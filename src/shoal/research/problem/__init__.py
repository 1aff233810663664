"""``shoal solve``: one decision of a policy on a problem file; allocation, objective and gap out."""

from shoal.research.problem.problem_file import Problem, read_problems
from shoal.research.problem.solve import solve

__all__ = ["Problem", "read_problems", "solve"]
