"""Token signals on fixed completions: drawn, examined, held against ground truth."""
