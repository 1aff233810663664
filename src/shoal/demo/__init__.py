"""The demonstration of `shoal demo`: small training jobs, and a cluster of virtual nodes on this machine."""
