"""`loadgen.traffic.lengths.shared_with_all`: each prompt keeps tokens of its own."""

import numpy as np
import pytest

from loadgen.traffic.lengths import UNIQUE_TOKENS, shared_with_all


@pytest.mark.parametrize(
    ("prompt", "prefix_hit", "shared"),
    [(1000, 0.5, 500), (1000, 0.0, 0), (1000, 1.0, 1000 - UNIQUE_TOKENS), (100, 0.99, 92), (5, 1.0, 4)],
)
def test_what_all_prompts_share_leaves_room_for_what_names_a_request(
    prompt: int, prefix_hit: float, shared: int
) -> None:
    assert shared_with_all(np.array([prompt]), prefix_hit).tolist() == [shared]
