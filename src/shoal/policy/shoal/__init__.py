"""The policy ``shoal``: one market for rigid, elastic and adaptive jobs on equal and unequal GPUs."""
