"""For tests of policies, ours and yours: builders, hypothesis strategies, and the suite every policy passes."""
