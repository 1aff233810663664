"""The agent of a node: starts the runs that the control plane orders, and leaves no process behind."""
