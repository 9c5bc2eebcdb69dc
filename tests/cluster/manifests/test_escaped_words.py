"""`cluster.manifests.names` and `ray_service`: words that could mean more where they end up."""

import pytest

from cluster.manifests import names
from cluster.manifests.ray_service import KubernetesSite, ray_object
from conf import load


@pytest.mark.parametrize(
    ("form", "text"), [("path", "/srv/../etc"), ("path", "/.."), ("image", "a..b"), ("path", "/a b")]
)
def test_a_name_that_leads_elsewhere_is_refused_with_its_flag(form: str, text: str) -> None:
    with pytest.raises(ValueError, match="--folder="):
        names.checked(form, text, "--folder")
    assert names.checked("path", "/srv/x..".rstrip("."), "--folder") == "/srv/x"


def test_kubernetes_expands_no_variable_in_a_value() -> None:
    site = KubernetesSite(image=f"ray:2@sha256:{'0' * 64}")
    made = ray_object(site, [], load([]).hardware, {"A": "$(SECRET) and $HOME"}, None)
    container = made["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {"name": "A", "value": "$$(SECRET) and $HOME"} in container["env"]
