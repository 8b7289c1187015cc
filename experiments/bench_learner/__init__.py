"""The learner's training step against TRL's GRPOTrainer, seconds and peak memory: `python -m experiments.bench_learner`."""
