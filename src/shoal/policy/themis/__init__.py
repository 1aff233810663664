"""Themis: finish-time fairness for apps by auctions of leased GPUs, an agent for each app and one arbiter.

`protocol` has what the two sides say to each other, `agent` and `arbiter` have the sides, both pure; `policy` plays a
round between them on a snapshot. What an app is worth where comes from `perf.valuation` and `locality`.

References: Themis (NSDI '20).
"""
