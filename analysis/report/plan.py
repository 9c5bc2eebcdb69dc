"""The page of a plan: the nodes, the rules that ask for them, the day, Ray Serve's settings if written."""

import json
from dataclasses import replace

from analysis.figures.plan import Nodes
from analysis.planning.verdict import NoPlan, Plan
from analysis.report.blocks import Block, Code, Facts, Missing, Page, Paragraph, Section
from analysis.report.exhibits import Room, block
from analysis.report.wording import value
from analysis.results.json_border import to_tree
from analysis.views import plan as view
from analysis.views.shown import Answer

UNWRITTEN = "no file for Ray Serve was asked for; --serve-config FILE.yaml writes it"
PREDICTED = "a file for Ray Serve needs the folder of a run: this capacity is predicted"
HEADS = {
    "basis": ("What it rests on", "The capacity, and the configuration that has it."),
    "rules": ("Which rule asks for them", "The fewest nodes that each rule is content with."),
    "hours": ("Over the day", "Nodes by the hour."),
    "cost": ("Cost and power", "By the price that you gave, and watts as given or measured."),
}
"""Anchor, heading and purpose of the sections behind the figure."""


def page(plan: Plan | NoPlan) -> Page:
    """The page of a plan, or of its refusal."""
    answer = view.answer(plan)
    if isinstance(plan, NoPlan):
        claim = replace(answer, headline="Nothing is planned", notes=(f"{answer.headline}.",))
        return Page("no plan", "Plan", "The run allows no plan", claim, [])
    on = plan.planned_on
    cost: tuple[Block, ...] = tuple(view.cost_tables(plan)) or (Paragraph(view.NO_PRICE),)
    blocks: dict[str, tuple[Block, ...]] = {
        "basis": (Facts(tuple(view.basis(plan))),),
        "rules": (Facts(tuple(view.rules(plan))),),
        "hours": (Facts(tuple(view.hours(plan))),) if plan.day else (),
        "cost": (*cost, Facts(tuple(view.power(plan)))),
    }
    figure, whole = block(Nodes, plan, Room()), json.dumps(to_tree(plan), indent=1)
    code = Code("The plan as JSON, every figure with its unit", whole, folded=True)
    sections = [
        Section("nodes", "How many nodes", "What grows with the demand.", (figure, code)),
        *(Section(anchor, *HEADS[anchor], shown) for anchor, shown in blocks.items() if shown),
        Section(
            "service", "Taken into service", "Ray Serve's autoscaling for the planned nodes.", _settings(plan)
        ),
    ]
    subtitle = f"Planned on {on.name}, {on.found_by}: {on.asked.load}"
    title = f"{answer.word}: {on.name}"
    return Page(title, "Plan of a service", subtitle, _claim(plan, answer), sections)


def _claim(plan: Plan, answer: Answer) -> Answer:
    """The answer at the head of the page; its facts have sections of their own."""
    figures = (
        ("Planned per node", f"{plan.service.qps_per_node:.2f} QPS"),
        ("Headroom", f"{100 * plan.care.headroom:g} %"),
        ("Spare nodes", str(plan.care.spare_nodes)),
    )
    fleet, _, efficiency = answer.headline.partition("; ")
    reason = [f"{plan.reason}."] if plan.reason else []
    caution = [plan.planned_on.caution] if plan.planned_on.caution else []
    return replace(
        answer, headline=fleet, facts=figures, tables=(), notes=(f"{efficiency}.", *reason, *caution)
    )


def _settings(plan: Plan) -> tuple[Block, ...]:
    """The settings of Ray Serve, or how to have them written."""
    written = plan.into_service
    if written is None:
        why = PREDICTED if plan.planned_on.found_by == "predicted" else UNWRITTEN
        return (Missing("Ray Serve's settings", why),)
    settings = Facts(tuple((name, value(it)) for name, it in written.autoscaling_config.items()))
    where = f"Ray Serve's autoscaling in {written.file}; its comments give each number's reason:"
    return Paragraph(where), settings
