"""What a sweep says: `python -m experiments.stability 'folders=[multirun/gating]' output_dir=results/stability`."""
