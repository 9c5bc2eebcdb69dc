"""`loadgen.cli.shape_words`: words that no recommendation honours are refused before a shape is predicted."""

import pytest

from conf import ConfigError
from loadgen.cli.shape_words import ShapeQuestion


@pytest.mark.parametrize("word", ["quality.prompts=500", "quality=default"])
def test_words_of_the_gate_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="belongs to the verb quality; leave it out"):
        ShapeQuestion.of(["demand.peak_qps=1", word], None)
