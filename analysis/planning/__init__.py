"""Turn a capacity into nodes, hours and money; knows demands, not how a capacity was found."""

from analysis.planning.command import command, of_words
from analysis.planning.efficiency import scaling
from analysis.planning.evidence import NotPlannable, evidence_of
from analysis.planning.money import cost
from analysis.planning.plan import plan
from analysis.planning.verdict import NoPlan, Plan
from conf.specs.planning import Demand, Margins

__all__ = [
    "Margins",
    "Demand",
    "NoPlan",
    "NotPlannable",
    "Plan",
    "command",
    "cost",
    "evidence_of",
    "of_words",
    "plan",
    "scaling",
]
