"""What `shoal demo` runs: small training jobs of one's own kind, and a cluster of virtual nodes to run them on."""
