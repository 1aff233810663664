"""What `shoal demo` runs: small training jobs, and a cluster of virtual nodes on this machine."""
