"""Gavel's figures and tables (OSDI '20): the paper's statements, ours, and whether they agree."""
