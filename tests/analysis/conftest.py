"""What all tests of the room share."""

from pathlib import Path

import pytest

from analysis.results import runs
from conf import Experiment, load

KNOWN: dict[bytes, Experiment] = {}


@pytest.fixture(autouse=True)
def a_saved_configuration_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes make the same experiment; reading them takes longer than most tests."""

    def once(base: Path) -> Experiment:
        text = base.read_bytes()
        if text not in KNOWN:
            KNOWN[text] = load(base=base)
        return KNOWN[text]

    monkeypatch.setattr(runs, "load", once)
