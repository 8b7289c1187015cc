"""Intervals over problems and seeds, power, and how well a token signal ranks."""
