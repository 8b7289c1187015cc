"""What importance costs and how true it is, side by side in one run: `python -m experiments.bench_importance`."""
