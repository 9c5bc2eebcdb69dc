"""The MI325X paper's curves (arXiv 2603.10031): throughput and p99 latency by concurrency."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from analysis.stats.map_fit import Floats
from conf import Experiment
from loadgen.studies.published_tables import PUBLISHED_MODELS, PublishedModel, PublishedRow, published_rows
from tests.benchmarks.evidence.figures import Figure, Team, Values, loaded, machine
from tests.benchmarks.paper_tables import told

FITTED = Team(1.0, 0.0)
"""One team measured all tables, to which each model's constants were fitted."""


@dataclass(frozen=True)
class Curve:
    """The rows of one model."""

    subject: PublishedModel
    rows: tuple[PublishedRow, ...]
    team: Team = FITTED

    @property
    def source(self) -> str:
        return f"arXiv 2603.10031, {self.subject.name}"

    @property
    def experiment(self) -> Experiment:
        return loaded(("hardware=mi325x", "cluster=mi325x_1n", *self.subject.words))

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return [
            Figure(f"table {row.table} {row.phase} C={row.concurrency} {name}", value, unit, 0.0)
            for row in self.rows
            for name, value, unit in (("throughput", row.total_tok_s, "tok/s"), ("p99", row.p99_s, "s"))
        ]

    def predict(self, values: Values) -> Floats:
        served = machine(self.experiment, values)
        return np.log([told(served, self.subject, row) for row in self.rows]).ravel()


def curves(path: Path, skipped: list[str]) -> list[Curve]:
    """The models of a file like the paper's tables; what is left out, in `skipped`."""
    known = published_rows(path)
    subjects = {subject.name: subject for subject in PUBLISHED_MODELS}
    skipped += [f"{path.name}: the paper has no {name}" for name in known if name not in subjects]
    items = []
    for name, rows in known.items():
        if name not in subjects:
            continue
        skipped += [
            f"{name}, table {row.table}, C={row.concurrency}: {row.left_out}" for row in rows if row.left_out
        ]
        kept = tuple(row for row in rows if not row.left_out)
        items.append(Curve(subjects[name], kept))
    return items
