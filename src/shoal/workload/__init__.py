"""What arrives: one schema for jobs, readers for the public trace formats, and seeded generators.

Everything here ends in a ``Workload``, an immutable list of valid jobs in order of submission. The truth about a job
(its real work, the batch sizes its script will choose) is in its row; what its owner tells the scheduler is the row's
``spec()``.
"""
