"""Accuracy: draw, grade, avg@k and pass@1 with intervals, and the comparison of two models."""
