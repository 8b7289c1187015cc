"""Runs that are damaged on purpose: `python -m experiments.fault_drills short=true`. The last line is one JSON object."""
