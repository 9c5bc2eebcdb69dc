"""Static hosts as a Ray cluster: a file for `ray up`, and systemd units. No file holds a secret."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.manifests import names
from cluster.manifests.nodes import GPU, HEAD_NODE, OPENED, NodeGroup, ray_start
from cluster.manifests.templates import comment, render
from cluster.ray_session.placement import LOAD_ROLE

ETC = "/etc/maxqps"
TOKEN = f"{ETC}/auth_token"
ENVIRONMENT = f"""\
On every host as {ETC}/ray.env. The token is in {TOKEN} (mode 0400, owner ray), the same
on all hosts:
  umask 077; ray get-auth-token --generate | ssh HOST 'install -D -m 0400 -o ray /dev/stdin {TOKEN}'"""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Addresses of the head, of the nodes with GPUs and of those for load, in this order."""

    head: str
    gpu: tuple[str, ...]
    load: tuple[str, ...]

    @property
    def workers(self) -> tuple[str, ...]:
        return self.gpu + self.load


def assign_hosts(addresses: Sequence[str], groups: Sequence[NodeGroup]) -> Hosts:
    """The hosts in the order of the node groups, the head first.

    Raises ValueError for a wrong number of hosts, and for text that is no IP address.
    """
    for address in addresses:
        names.address(address, "--hosts")
    counts = {group.role: group.count for group in groups}
    load = counts.get(LOAD_ROLE, 0)
    needed = 1 + sum(counts.values())
    if len(addresses) != needed or len(set(addresses)) != needed:
        raise ValueError(
            f"--hosts names {len(set(addresses))} hosts but {needed} are needed: the head, "
            f"{needed - 1 - load} with GPUs (cluster.nodes) and {load} for load (--load-nodes)"
        )
    cut = needed - load
    return Hosts(addresses[0], tuple(addresses[1:cut]), tuple(addresses[cut:]))


def ray_up(
    hosts: Hosts,
    groups: Sequence[NodeGroup],
    env: dict[str, str],
    heading: str,
    name: str,
    ssh_user: str,
    venv: str,
) -> dict[str, str]:
    """File name and text for `ray up` with the local provider; every host is installed already.

    Raises ValueError for a malformed name, user or folder.
    """
    names.checked("cluster", name, "--name")
    names.checked("user", ssh_user, "--ssh-user")
    names.checked("path", venv, "--venv")
    starts = {group.role: _shell(ray_start(group, "$RAY_HEAD_IP", "$own")) for group in groups}
    text = render(
        "ray-up.yaml.j2",
        hosts=hosts,
        env=env,
        heading=heading,
        ports=OPENED,
        name=name,
        ssh_user=ssh_user,
        venv=venv,
        start_head=_shell(ray_start(HEAD_NODE, hosts.head, hosts.head)),
        start_gpu=starts[GPU],
        start_load=starts.get(LOAD_ROLE),
    )
    return {"ray-up.yaml": text}


def _shell(words: Sequence[str]) -> str:
    """Words quoted for a shell, which still replaces $RAY_HEAD_IP and $own."""
    bare = ("--address=$RAY_HEAD_IP", "--node-ip-address=$own")
    return " ".join(word if word.startswith(bare) else shlex.quote(word) for word in words)


def systemd(
    hosts: Hosts, groups: Sequence[NodeGroup], env: dict[str, str], heading: str, venv: str, amd: bool
) -> dict[str, str]:
    """Unit files by name, one for each role, and the environment of them all.

    The units are systemd's templates: the name of an instance, after the @, is the host's address. Raises
    ValueError for a malformed `venv`.
    """
    names.checked("path", venv, "--venv")
    addresses = {"head": (hosts.head,), GPU: hosts.gpu, LOAD_ROLE: hosts.load}
    comments = comment("\n".join([heading, OPENED, ENVIRONMENT]))
    files = {"ray.env": f"{comments}\n{environment_file(env)}"}
    for group in (HEAD_NODE, *groups):
        unit = f"maxqps-{group.role}"
        words = [f"{venv}/bin/ray", *ray_start(group, hosts.head, "%i")[1:], "--block"]
        files[f"{unit}@.service"] = render(
            "systemd.service.j2",
            nodes=group,
            hosts=addresses[group.role],
            heading=heading,
            ports=OPENED,
            unit=unit,
            etc=ETC,
            token=TOKEN,
            venv=venv,
            amd=amd,
            # A word of ExecStart stands in single quotes if it has double quotes of its own.
            start=" ".join(f"'{word}'" if '"' in word else word for word in words),
        )
    return files


def environment_file(env: dict[str, str]) -> str:
    """systemd's EnvironmentFile of every node, with the token by its path."""
    pairs = {**env, "RAY_AUTH_TOKEN_PATH": TOKEN}
    return "".join(f'{name}="{value.translate(_ESCAPED)}"\n' for name, value in pairs.items())


_ESCAPED = str.maketrans({letter: f"\\{letter}" for letter in '"\\$`'})
"""Letters with a meaning in double quotes, for systemd and for a shell."""
