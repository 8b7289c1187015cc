"""Which tokens got the credit? One page of one training step: `python -m experiments.inspect_credit run=FOLDER step=N`."""
