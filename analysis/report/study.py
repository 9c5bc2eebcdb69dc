"""What differs between A and B of a comparison, as a table."""

from analysis.report.wording import value
from analysis.results.verdicts import StudyVerdict
from analysis.views.shown import Table


def differences(study: StudyVerdict) -> Table | None:
    """Keys that differ between A and B of a comparison; None for another study."""
    if not study.differs:
        return None
    rows = tuple((key, value(ours), value(theirs)) for key, (ours, theirs) in study.differs.items())
    return Table("What differs from A to B", ("key", "A", "B"), rows)
