"""Everything that was measured, on one page of links: `python -m experiments.report` writes results/report.html."""
