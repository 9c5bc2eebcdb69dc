"""`cluster.manifests`: words that could mean more where they end up."""

import pytest
import yaml

from cluster.manifests import names
from cluster.manifests.kuberay import KubernetesSite, kuberay
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
    (text,) = kuberay(site, [], load([]).hardware, {"A": "$(SECRET) and $HOME"}, "", None).values()
    _, made = yaml.safe_load_all(text)
    container = made["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {"name": "A", "value": "$$(SECRET) and $HOME"} in container["env"]
