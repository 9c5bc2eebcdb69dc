"""`serve_apps.routing.policies`: known choices."""

import pytest

from serve_apps.routing import policies


@pytest.mark.parametrize(
    ("in_flight", "replicas", "factor", "full"),
    [(10, 4, 1.25, 4), (7, 4, 1.0, 2), (8, 4, 1.0, 3), (0, 8, 1.25, 2)],
)
def test_a_replica_is_full_at_the_factor_times_the_mean_rounded_up(
    in_flight: int, replicas: int, factor: float, full: int
) -> None:
    assert policies.bound(in_flight, replicas, factor) == full
