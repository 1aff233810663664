"""The benchmarks of docs/benchmarks.md, one module for each part of Shoal."""
