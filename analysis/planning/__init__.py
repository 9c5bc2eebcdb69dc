"""Turn a capacity into nodes, hours and money; knows demands, not how a capacity was found."""

from analysis.planning.evidence import NotPlannable, evidence_of
from analysis.planning.money import cost
from analysis.planning.plan import command, of_words, plan
from analysis.planning.sizing import scaling
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
