"""A measured grid: its cells as study.json holds them."""

from collections.abc import Mapping
from typing import Any

from analysis.results import joint
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import MATRIX, MatrixCell, StudyVerdict

KIND = MATRIX
REFERENCE, PAIRED, UNPAIRED = "reference", "paired", "unpaired"
"""The origin of a ratio: 1 by definition, common arrivals, or two independent capacities."""


def row(
    name: str, at: Mapping[str, Any], refused: str, verdict: RunVerdict | StudyVerdict | None
) -> MatrixCell:
    """A cell before its ratio is known; `refused` says why it makes no experiment.

    `exit_code` is None of a cell that is still to come.
    """
    if refused:
        return MatrixCell(name=name, at=dict(at), exit_code=2, reason=refused)
    if verdict is None:
        return MatrixCell(name=name, at=dict(at), exit_code=None)
    capacity = verdict.capacity if verdict.valid else None
    return MatrixCell(
        name=name,
        at=dict(at),
        exit_code=verdict.exit_code,
        reason=verdict.reason,
        hold=verdict.hold,
        qps_per_node=capacity.claimed if capacity else None,
        binding=capacity.binding if capacity else None,
        simulated=joint.kind(verdict.asked, capacity) if capacity else "",
        sampling_qps=capacity.sampling if capacity and capacity.constants else None,
    )
