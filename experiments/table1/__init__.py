"""Table 1, cell by cell: `python -m experiments.table1 seeds=3`. Finished cells are kept, so it can be interrupted."""
