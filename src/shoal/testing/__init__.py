"""A test kit for policies: builders, hypothesis strategies, and the conformance suite that every policy passes."""
