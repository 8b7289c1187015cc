"""What a run will need and cost, worked out and not run. Pure arithmetic: sizes, settings and assumptions in, numbers out."""

from oar.plan.assumptions import Assumptions
from oar.plan.memory import Memory, memory_of
from oar.plan.model import Architecture
from oar.plan.run import Plan, plan_run, step_costs
from oar.plan.work import Work, importance_work

__all__ = [
    "Architecture",
    "Assumptions",
    "Memory",
    "Plan",
    "Work",
    "importance_work",
    "memory_of",
    "plan_run",
    "step_costs",
]
