"""Does a completion's final answer equal the gold answer? `verify` answers for one, `grade` for many at a time."""

from oar.tasks.verifier.grade import FORMS, OUTCOMES, Verdict, grade, verify

__all__ = ["FORMS", "OUTCOMES", "Verdict", "grade", "verify"]
