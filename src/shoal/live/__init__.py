"""A live cluster: the control plane with its loop, the live backend, and the runs of jobs on nodes."""
