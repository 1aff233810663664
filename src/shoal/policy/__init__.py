"""Scheduling policies: each is a pure function of a frozen snapshot, one module per idea."""
