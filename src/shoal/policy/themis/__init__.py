"""Themis: finish-time fairness for apps by auctions of leased GPUs, an agent for each app and one arbiter.

`protocol` has the messages, `agent` and `arbiter` the two sides; `round` holds the auctions of one decision. Valuations
come from `perf.app_valuation` and `locality`.

References: Themis (NSDI '20).
"""
