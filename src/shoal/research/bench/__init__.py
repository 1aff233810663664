"""The speed table of docs/benchmarks.md, one module for each part of Shoal."""
