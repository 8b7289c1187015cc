"""A run's folder: what it writes, and the same read back."""
