"""Thin entry points, one per thing a reader may want to run."""
