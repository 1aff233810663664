"""Seeded generators of workloads, one module per paper, and the demonstration's own.

Each is a pure function of its dice, a number of jobs and its options; ``registry`` lists them by name.
"""
