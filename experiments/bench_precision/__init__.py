"""How well importance in bfloat16 agrees with float32: `python -m experiments.bench_precision`."""
