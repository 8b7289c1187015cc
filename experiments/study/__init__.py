"""A study, run by run: `python -m experiments.study experiment=pays`. Finished runs are kept, so it can be interrupted."""
