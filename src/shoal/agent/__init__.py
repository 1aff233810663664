"""The agent of a node: starts and stops the runs that the control plane orders, and leaves no process behind."""
