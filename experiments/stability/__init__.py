"""What a sweep says: `python -m experiments.stability 'folders=[multirun/sweep_gating]' output_dir=results/sweep_gating`."""
