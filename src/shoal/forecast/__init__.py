"""Forecasts: the folded state of a cluster, simulated onward."""
