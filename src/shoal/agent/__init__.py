"""One agent per node: starts what the control plane orders, keeps its leases, and leaves no process behind."""
