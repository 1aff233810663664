"""Gavel: every policy an optimisation over time shares, carried out in rounds.

A policy here is a rule that turns a ``Problem`` into ``Shares``; ``rounds`` does the rest for all of them.

References: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI '20.
"""
