"""Turn a capacity into nodes, hours and money; knows demands, not how a capacity was found."""

from analysis.planning.evidence import NotPlannable as NotPlannable
from analysis.planning.evidence import evidence_of as evidence_of
from analysis.planning.money import cost as cost
from analysis.planning.plan import NoPlan as NoPlan
from analysis.planning.plan import Plan as Plan
from analysis.planning.plan import command as command
from analysis.planning.plan import plan as plan
from analysis.planning.sizing import scaling as scaling
from conf.specs.planning import Demand as Demand
from conf.specs.planning import Margins as Margins
