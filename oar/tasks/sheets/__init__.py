"""The embedded task in which credit pays: look up a hidden digit for each of several keys (docs/SHEETS.md)."""

from oar.tasks.sheets.generator import SHEETS, Sheet, demonstration, evaluation_set, training_problem
from oar.tasks.sheets.grading import marks, reward

__all__ = ["SHEETS", "Sheet", "demonstration", "evaluation_set", "marks", "reward", "training_problem"]
