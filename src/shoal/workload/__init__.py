"""Workloads: one schema for jobs, readers of the public trace formats, and seeded generators.

All of them return a `Workload`: valid, immutable jobs in order of submission. A job's row holds its true work and
batch sizes; ``spec()`` returns the specification that its owner declares.
"""
