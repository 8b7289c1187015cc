"""Signal and noise of the policy gradient under each weighting of tokens, `python -m experiments.gradient_signal`."""
