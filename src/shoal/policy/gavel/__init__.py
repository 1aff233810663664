"""Gavel: policies that optimise time shares, which are then carried out in rounds.

Each policy is a rule that maps a ``ShareProblem`` to ``Shares``; ``policy`` and ``rounds`` do the rest for all of them.

References: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI '20.
"""
