"""Experiments on token signals that need no training runs of their own: `python -m experiments.signals experiment=NAME`."""
