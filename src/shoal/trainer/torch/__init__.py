"""PyTorch training loops that Shoal can stop, move, resize and tune."""
