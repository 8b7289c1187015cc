"""How often intervals over few seeds hold the true value, simulated: `python -m experiments.coverage`. Trains nothing."""
