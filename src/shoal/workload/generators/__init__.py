"""Seeded workload generators: one module for each paper, and one for the demonstration.

Each is a pure function of a random stream, a number of jobs and its options; ``registry`` lists them by name.
"""
