"""Everything that was measured, on one page: `python -m experiments.report` turns results/ into results/report.html."""
