"""Renders the Jinja templates of this folder. Comments on reasons and use are in the templates."""

import json
import shlex
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from conf.io.one_line import printable
from conf.ray_patches import RAY_VERSION

TOPOLOGY = """\
One pod, or host, is one node with all its GPUs: of eight MI325X, GPUs 0-3 are in one NUMA node and 4-7 in the
other, so that each TP4 group has its own. NUMA balancing off (kernel.numa_balancing=0), NPS1."""


def render(template: str, **values: Any) -> str:
    """The text of a template. Raises jinja2's UndefinedError for a missing value."""
    # No HTML is written: the filters `json`, `quoted` and `comment` escape what stands in YAML and units.
    environment = Environment(
        loader=PackageLoader("cluster.manifests.templates", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "json": json.dumps,
        "quoted": shlex.quote,
        "comment": comment,
        "literal": kubernetes_literal,
    }
    return environment.get_template(template).render(ray_version=RAY_VERSION, topology=TOPOLOGY, **values)


def comment(text: str) -> str:
    """Text as comment lines, without control characters that would end a line."""
    return "\n".join(f"# {printable(line)}".rstrip() for line in text.splitlines())


def kubernetes_literal(value: str) -> str:
    """The value of an environment variable in which Kubernetes replaces no $(NAME)."""
    return value.replace("$(", "$$(")
