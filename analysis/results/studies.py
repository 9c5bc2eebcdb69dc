"""What several runs say together, and how a study's folder is read and shown.

Knows the trees of sweep.json and study.json; the statistics are those of `analysis.pooling`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.results import matrix_table
from analysis.results.json_border import from_tree
from analysis.results.locations import STUDY, part_names, read_json
from analysis.results.runs import RECORDED, RunError
from analysis.results.types.study_verdict import StudyVerdict
from analysis.stats.pooling import Estimate, Interval, pooled, repeated, student_t
from conf.io.one_line import reason

FILE = STUDY
OTHER = "config-b.yaml"
"""What B of a comparison was asked, beside A's config.yaml in the study's folder."""
FEW_REPEATS = 4
"""With fewer the interval by the t-distribution is more than twice that of many (3.2 at 4)."""

Tree = dict[str, Any]
Trees = Mapping[str, Mapping[str, Any]]


def is_study(path: Path) -> bool:
    """True for the folder of a study."""
    return (path / FILE).exists()


def whole(path: Path) -> Path:
    """The folder to resume: that of the comparison or matrix for a part, which alone would not go on."""
    above = path.resolve().parent
    typed = path.parent if path.parent.resolve() == above else above
    return typed if (above / OTHER).exists() or _is_matrix(above) else path


def _is_matrix(path: Path) -> bool:
    return is_study(path) and load_study(path)["study"] == matrix_table.KIND


def load_study(path: Path) -> Tree:
    """The tree of study.json; `state` is `running` until it ended. Raises RunError if it cannot be read."""
    try:
        tree = read_json(path / FILE)
    except OSError as error:
        raise RunError(f"{path} is not a readable study: {reason(error)}") from error
    if not {"exit_code", "names", "parts"} <= tree.keys():
        raise RunError(f"{path} is not a readable study: {FILE} lacks its exit code, names or parts")
    part_names(path, tree)
    return tree | ({"folder": str(path)} if "folder" in tree else {})


def load_verdict(path: Path) -> StudyVerdict:
    """study.json as a typed verdict; `exit_code` is None until it ended. Raises RunError for a broken one."""
    return from_tree(StudyVerdict, load_study(path), path / FILE)


def parts(path: Path) -> list[Path]:
    """The folders of a study's parts that have a result, or a run's own. Raises RunError if it has none.

    A probe that missed its bounds has one too: it measured what it says.
    """
    if not is_study(path):
        return [path]
    ended = [path / row["name"] for row in load_study(path)["parts"] if row["exit_code"] in RECORDED]
    if not ended:
        raise RunError(f"{path}: no part of this study has a result yet")
    return ended


def part_row(name: str, tree: Mapping[str, Any]) -> Tree:
    """What study.json keeps of one part."""
    capacity = tree.get("capacity") or {}
    return {
        "name": name,
        "seed": tree.get("asked", {}).get("seed"),
        "exit_code": tree["exit_code"],
        "reason": tree["reason"],
        "qps_per_node": capacity.get("qps_per_node"),
        "binding": capacity.get("binding"),
    }


def requests(trees: Sequence[Mapping[str, Any]]) -> Tree:
    """Planned requests, rows, and rows by status, summed over runs."""
    counted = [tree["requests"] for tree in trees if tree.get("requests")]
    states: Counter[str] = Counter()
    for one in counted:
        states.update(one["by_status"])
    planned, rows = (sum(one[key] for one in counted) for key in ("planned", "rows"))
    return {"planned": planned, "rows": rows, "by_status": dict(sorted(states.items()))}


def pooled_deployments(parts: Trees, replicas_per_node: float | None) -> Tree:
    """One capacity from deployments that each measured it, with the spread between them."""
    figures = [tree["capacity"]["qps_per_node"] for tree in parts.values()]
    estimates = [Estimate.of_interval(q["estimate"], q["low"], q["high"]) for q in figures]
    found = pooled(estimates)
    between, within = found.between.value, math.sqrt(sum(e.sd**2 for e in estimates) / len(estimates))
    interval = "95 % of the mean over deployments (random effects); certified is its 5 % quantile"
    remedy = (
        "the deployments differ by more than each one's noise: more of them narrow the interval "
        f"(search.deployments={2 * len(parts)}), more minutes do not"
    )
    return {
        "capacity": _capacity(parts, found.qps, found.certified, interval, replicas_per_node),
        "between": {"sd_pct": _percent(found.between), "within_sd_pct": 100 * within},
        "effects_pct": {name: _percent(effect) for name, effect in zip(parts, found.effects, strict=True)},
        "evidence": f"{len(parts)} deployments",
        "remedy": remedy if between > within else "",
    }


def mean_of_repeats(parts: Trees, replicas_per_node: float | None) -> Tree:
    """Mean, interval by Student's t and coefficient of variation of repeats.

    Each one's own interval is not used: what repeats show is how far the whole procedure repeats itself.
    """
    found = repeated([tree["capacity"]["qps_per_node"]["estimate"] for tree in parts.values()])
    count = len(parts)
    interval = "95 % of the mean over repeats, by the t-distribution; certified is its lower 5 % end"
    t = student_t(0.975, count - 1)
    remedy = f"{count} repeats make a wide interval (t = {t:.1f}): search.repeats=5 narrows it"
    return {
        "capacity": _capacity(parts, found.mean, found.certified, interval, replicas_per_node),
        "variation_pct": _percent(found.variation),
        "evidence": f"{count} repeats",
        "remedy": remedy if count < FEW_REPEATS else "",
    }


def lines(tree: Mapping[str, Any]) -> list[str]:
    """The parts of a study on the screen, under its verdict."""
    if tree["study"] == matrix_table.KIND:
        return matrix_table.lines(tree)
    shown = []
    if between := tree.get("between"):
        sds = f"sd between them {_pct(between['sd_pct'])}, within {between['within_sd_pct']:.1f} %"
        shown.append(f"  pooled over {tree['evidence']}: {sds}")
    if tree.get("variation_pct"):
        shown.append(f"  mean of {tree['evidence']}: coefficient of variation {_pct(tree['variation_pct'])}")
    known = {row["name"]: row for row in tree["parts"]}
    said = _probe if tree["study"] == "recipe" else _part
    shown += [
        f"  {name}: {said(known[name]) if name in known else 'no result yet'}" for name in tree["names"]
    ]
    return shown + ([f"  {tree['remedy']}"] if tree.get("remedy") else [])


def _probe(row: Mapping[str, Any]) -> str:
    return "recorded" if row["exit_code"] in RECORDED else f"no result (exit {row['exit_code']})"


def _part(row: Mapping[str, Any]) -> str:
    if row["exit_code"] or not row["qps_per_node"]:
        return f"no result (exit {row['exit_code']})"
    q = row["qps_per_node"]
    figures = f"{q['estimate']:.2f} QPS per node, 95 % interval [{q['low']:.2f}, {q['high']:.2f}]"
    return f"{figures}, limited by p90 {row['binding'].upper()}, seed {row['seed']}"


def _capacity(
    parts: Trees, qps: Interval, certified: float, interval: str, replicas_per_node: float | None
) -> Tree:
    """The same tree as a single run's `capacity`, as far as it makes sense for several."""
    figures = {"estimate": qps.value, "low": qps.low, "high": qps.high, "certified": certified}
    found = [tree["capacity"] for tree in parts.values()]
    likely = [(one["binding"], one["binding_probability"]) for one in found]
    by_ttft = sum(p if limit == "ttft" else 1 - p for limit, p in likely) / len(likely)
    return {
        **per_node_and_replica(figures, replicas_per_node),
        "interval": interval,
        "binding": "ttft" if by_ttft >= 0.5 else "tpot",
        "binding_probability": max(by_ttft, 1 - by_ttft),
        "open_above": False,
        "open_below": False,
    }


def per_node_and_replica(figures: Mapping[str, float], replicas_per_node: float | None) -> Tree:
    """Figures in QPS per node as they are and, where the replicas are known, per replica."""
    per_replica = None
    if replicas_per_node is not None:
        per_replica = {name: value / replicas_per_node for name, value in figures.items()}
    return {"qps_per_node": dict(figures), "qps_per_replica": per_replica}


def _percent(figure: Interval) -> Tree:
    return {"estimate": 100 * figure.value, "low": 100 * figure.low, "high": 100 * figure.high}


def _pct(figure: Mapping[str, float]) -> str:
    return f"{figure['estimate']:.1f} % [{figure['low']:.1f}, {figure['high']:.1f}]"
