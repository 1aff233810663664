"""Policies that grant each gang the number of GPUs it asked for, or none."""
