"""Providers open allocations on nodes, in which agents run: `protocol`, the pure `reconcile`, and one module each."""
