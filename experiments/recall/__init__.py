"""Oracle recall: every token signal against the tokens that are known to matter, `python -m experiments.recall`."""
