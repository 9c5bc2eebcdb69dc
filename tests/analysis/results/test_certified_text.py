"""analysis.results.text.certified_text: no text shows more than was certified."""

import doctest
import re

import pytest

from analysis.planning import plan_text
from analysis.report import wording
from analysis.results.text import certified_text
from analysis.results.text.certified_text import rounded_down


def test_the_examples_hold() -> None:
    found = doctest.testmod(certified_text)
    assert found.attempted and found.failed == 0


@pytest.mark.parametrize("qps", [0.0047, 0.99996, 2.65549, 27.8999, 1234.567])
def test_no_text_of_a_certified_rate_is_above_it(qps: float) -> None:
    for text in (certified_text.certified_text(qps), wording.certified_qps(qps), plan_text._certified(qps)):
        shown = float(re.sub(",", "", text))
        assert shown <= qps < shown + 0.01


@pytest.mark.parametrize("hundredths", range(1, 1000, 7))
def test_a_rate_of_two_decimals_stays(hundredths: int) -> None:
    assert rounded_down(hundredths / 100) == hundredths / 100
