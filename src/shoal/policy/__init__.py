"""Who gets how much: one module per idea, each a pure function of a frozen snapshot."""
