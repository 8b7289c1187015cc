"""The methods side by side, at W&B or as one page without a network: `python -m experiments.dashboard to=page runs=[outputs]`."""
