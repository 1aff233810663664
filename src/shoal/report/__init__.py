"""What it was worth: reads journals only, and says how the jobs fared, how that compares, and how it looks."""
