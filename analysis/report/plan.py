"""The page of a plan: the nodes, the rules that ask for them, the day, Ray Serve's settings if written."""

import json
from collections.abc import Mapping
from typing import Any

from analysis.figures.plan import Nodes
from analysis.planning import plan_text
from analysis.report.blocks import Code, Facts, Missing, Page, Paragraph, Section
from analysis.report.exhibits import Room, block
from analysis.report.wording import value
from analysis.views.shown import Answer

Tree = Mapping[str, Any]

UNWRITTEN = "no file for Ray Serve was asked for; --serve-config FILE.yaml writes it"
PREDICTED = "a file for Ray Serve needs the folder of a run: this capacity is predicted"


def of_plan(tree: Tree) -> Page:
    """The page of a plan, or of its refusal."""
    word, _, answer = plan_text.headline(tree).partition("  ")
    if not tree["valid"]:
        claim = Answer(word, "bad", "Nothing is planned", notes=(f"{answer}.",))
        return Page("no plan", "Plan", "The run allows no plan", claim, [])
    room, on = Room(), tree["planned_on"]
    subtitle = f"Planned on {on['name']}, {on['found_by']}: {on['load']}"
    nodes = block(Nodes, tree, room)
    sections = [
        Section("nodes", "How many nodes", "What grows with the demand.", (nodes, _whole(tree))),
        *(Section(*head, tuple(map(_line, lines))) for head, lines in _told(tree) if lines),
        _settings(tree),
    ]
    return Page(f"{word}: {on['name']}", "Plan of a service", subtitle, _answer(tree, word, answer), sections)


def _whole(tree: Tree) -> Code:
    text = json.dumps(tree, indent=1, default=str)
    return Code("The plan as JSON, every figure with its unit", text, folded=True)


def _answer(tree: Tree, word: str, answer: str) -> Answer:
    fleet, _, efficiency = answer.partition("; ")
    planned, care = tree["answer"], tree["care"]
    figures = (
        ("Planned per node", f"{planned['planned_qps_per_node']:.2f} QPS"),
        ("Headroom", f"{100 * care['headroom']:g} %"),
        ("Spare nodes", str(care["spare_nodes"])),
    )
    said = f"{efficiency}.", *([f"{tree['reason']}."] if tree["reason"] else [])
    tone = "short" if tree["exit_code"] else "good"
    caution = tree["planned_on"]["caution"]
    return Answer(word, tone, fleet, figures, notes=(*said, *([caution] if caution else [])))


def _told(tree: Tree) -> list[tuple[tuple[str, str, str], list[str]]]:
    """Heading and lines of what the text of the plan says, in its order."""
    told = plan_text.parts(tree)
    return [
        (("basis", "What it rests on", "The capacity, and the configuration that has it."), told["basis"]),
        (
            ("rules", "Which rule asks for them", "The fewest nodes that each rule is content with."),
            told["rules"],
        ),
        (("hours", "Over the day", "Nodes by the hour."), told["day"]),
        (
            ("cost", "Cost and power", "By the price that you gave, and watts as given or measured."),
            told["cost"],
        ),
    ]


def _line(text: str) -> Paragraph:
    return Paragraph(text.strip())


def _settings(tree: Tree) -> Section:
    """The settings of Ray Serve, or how to have them written."""
    head = "service", "Taken into service", "Ray Serve's autoscaling for the planned nodes."
    into = tree.get("into_service")
    if into is None:
        why = PREDICTED if tree["planned_on"]["predicted"] else UNWRITTEN
        return Section(*head, (Missing("Ray Serve's settings", why),))
    settings = Facts(tuple((name, value(it)) for name, it in into["autoscaling_config"].items()))
    written = Paragraph(f"Ray Serve's autoscaling in {into['file']}; its comments give each number's reason:")
    return Section(*head, (written, settings))
