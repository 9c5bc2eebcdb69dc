"""Static hosts as a Ray cluster: a file for `ray up`, and systemd units; pure, and never a secret."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.manifests import names
from cluster.manifests.node_offers import GPU, HEAD_NODE, NodeGroup, ray_start
from cluster.ray_session.placement import LOAD_ROLE

OPEN_FILES = 1_048_576
"""Limit of open files: a stream is a socket on either side, and preflight needs at least 65,536."""
ETC = "/etc/maxqps"
TOKEN = f"{ETC}/auth_token"
UNIT = f"""\
[Unit]
Description=Ray for maxqps, role {{role}}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User=ray
{{groups}}EnvironmentFile={ETC}/ray.env
Environment=PATH={{venv}}/bin:/opt/rocm/bin:/usr/local/bin:/usr/bin:/bin
ExecStartPre=/usr/bin/test -s {TOKEN}
ExecStart={{start}}
Restart=on-failure
RestartSec=10
TimeoutStopSec=60
LimitNOFILE={OPEN_FILES}
LimitMEMLOCK=infinity
LimitCORE=0
TasksMax=infinity
UMask=0077
NoNewPrivileges=yes
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""
"""A unit file. A node that comes back lets a sweep go on; the dwell it was lost in is void all the same.

RCCL and ROCm pin the memory that they transfer from. PrivateDevices would hide GPUs, MemoryDenyWriteExecute
forbid compiled kernels, PrivateTmp hide /tmp from `ray status`, and ProtectHome hide caches.
"""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Addresses of the head, of the nodes with GPUs and of those for load, in this order."""

    head: str
    gpu: tuple[str, ...]
    load: tuple[str, ...]

    @property
    def workers(self) -> tuple[str, ...]:
        return self.gpu + self.load


def hosts_of(addresses: Sequence[str], nodes: Sequence[NodeGroup]) -> Hosts:
    """The hosts in the order of the nodes, the head first.

    Raises ValueError for a wrong number of hosts, and for text that is no IP address.
    """
    for address in addresses:
        names.address(address, "--hosts")
    counts = {each.role: each.count for each in nodes}
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
    name: str, hosts: Hosts, nodes: Sequence[NodeGroup], env: dict[str, str], ssh_user: str, venv: str
) -> dict[str, Any]:
    """A cluster file of `ray up` with the local provider; every host is installed already.

    Raises ValueError for a malformed name, user or folder.
    """
    names.checked("cluster", name, "--name")
    names.checked("user", ssh_user, "--ssh-user")
    names.checked("path", venv, "--venv")
    first = _first(env, venv)
    start_head = ray_start(HEAD_NODE, hosts.head, hosts.head)
    head = [*start_head, "--autoscaling-config=~/ray_bootstrap_config.yaml"]
    start = f"{_own_address(hosts)} && {_start_worker(hosts, nodes)}"
    return {
        "cluster_name": name,
        "max_workers": len(hosts.workers),
        "provider": {"type": "local", "head_ip": hosts.head, "worker_ips": list(hosts.workers)},
        "auth": {"ssh_user": ssh_user},
        "file_mounts": {},
        "setup_commands": [],
        "head_start_ray_commands": [f"{first} && ray stop", f"{first} && {_shell(head)}"],
        "worker_start_ray_commands": [f"{first} && ray stop", f"{first} && {start}"],
    }


def _own_address(hosts: Hosts) -> str:
    """Shell commands that find which worker this host is: `ray up` gives all workers the same command."""
    workers = " ".join(hosts.workers)
    find = 'case " $(hostname -I) " in *" $each "*) own=$each;; esac'
    refuse = f"{{ echo none of {workers} is an address of this host >&2; exit 1; }}"
    return f'own= && for each in {workers}; do {find}; done && {{ test -n "$own" || {refuse}; }}'


def _start_worker(hosts: Hosts, nodes: Sequence[NodeGroup]) -> str:
    """The shell command that starts Ray on the worker with the address $own, in its role."""
    starts = {each.role: _shell(ray_start(each, "$RAY_HEAD_IP", "$own")) for each in nodes}
    if LOAD_ROLE not in starts:
        return starts[GPU]
    return f"case $own in {'|'.join(hosts.load)}) {starts[LOAD_ROLE]};; *) {starts[GPU]};; esac"


def _first(env: dict[str, str], venv: str) -> str:
    """The beginning of every command; each has a shell of its own."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    token = "test -s ~/.ray/auth_token || { echo no token in ~/.ray/auth_token >&2; exit 1; }"
    files = "ulimit -n 65536 || echo fewer than 65536 open files >&2"  # preflight says it again
    return f"export PATH={shlex.quote(venv)}/bin:$PATH {settings} && {{ {token}; }} && {{ {files}; }}"


def _shell(words: Sequence[str]) -> str:
    """Words quoted for a shell, which still replaces $RAY_HEAD_IP and $own; Ray replaces ~ itself."""
    bare = ("--address=$RAY_HEAD_IP", "--node-ip-address=$own", "--autoscaling-config=~")
    return " ".join(word if word.startswith(bare) else shlex.quote(word) for word in words)


def environment_file(env: dict[str, str]) -> str:
    """systemd's EnvironmentFile of every node, with the token by its path."""
    pairs = {**env, "RAY_AUTH_TOKEN_PATH": TOKEN}
    return "".join(f'{name}="{value.translate(_ESCAPED)}"\n' for name, value in pairs.items())


_ESCAPED = str.maketrans({letter: f"\\{letter}" for letter in '"\\$`'})
"""Letters with a meaning in double quotes, for systemd and for a shell."""


def units(hosts: Hosts, nodes: Sequence[NodeGroup], venv: str, amd: bool) -> dict[str, str]:
    """Unit files by name, one for each role. Raises ValueError for a strange `venv`.

    They are templates: the name of a host's instance, after the @, is the host's address (%i in the file).
    """
    names.checked("path", venv, "--venv")
    roles = (HEAD_NODE, *nodes)
    return {f"maxqps-{each.role}@.service": _unit(each, hosts.head, venv, amd) for each in roles}


def _unit(nodes: NodeGroup, head: str, venv: str, amd: bool) -> str:
    words = [f"{venv}/bin/ray", *ray_start(nodes, head, "%i")[1:], "--block"]
    groups = "SupplementaryGroups=video render\n" if nodes.gpus and amd else ""
    return UNIT.format(role=nodes.role, groups=groups, venv=venv, start=" ".join(map(_quoted, words)))


def _quoted(word: str) -> str:
    """A word of ExecStart: in single quotes where it has quotes of its own."""
    return f"'{word}'" if '"' in word else word
