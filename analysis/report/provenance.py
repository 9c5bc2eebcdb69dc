"""Origin of a run and the way to repeat it: versions, machine, engine, seeds, files, command."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.report.blocks import Block, Code, Section, figure, moment, value
from analysis.results.runs import Run
from analysis.results.verdicts import StudyVerdict
from analysis.stats.estimate import UNKNOWN
from analysis.views.shown import Fact, Table
from conf import ConfigError
from conf.compose import dump
from conf.io.terminal import shown

CREDENTIALS = re.compile(r"(?<=://)[^/@\s\"']+@")
ENTRIES = "loadgen/__main__.py", "loadgen"
"""Endings of the first word of argv in a call of `python -m loadgen`."""
PURPOSE = "Enough to repeat the measurement, and to see that its files are the ones it wrote."


def of_run(run: Run) -> Section:
    """Everything needed to trust a run or to repeat it."""
    blocks = brief(run)
    if hosts := run.manifest.get("hosts"):
        blocks.append(hosts_table(hosts))
    if engine := _engine(run.manifest):
        blocks.append(Code("The engine as it reports itself", engine, folded=True))
    try:
        config = shown(CREDENTIALS.sub("", dump(run.config)))
    except ConfigError as error:
        config = f"cannot be read: {error}"
    blocks.append(Code("The resolved configuration (config.yaml)", config, folded=True))
    if files := run.manifest.get("files"):
        rows = tuple(sorted(files.items()))
        blocks.append(Table("Files of the run folder (manifest.json)", ("file", "sha256"), rows, folded=True))
    return Section("provenance", "Provenance", PURPOSE, tuple(blocks))


def of_study(study: StudyVerdict, parts: Sequence[Run]) -> list[Section]:
    """The command that repeats a study; empty if no part has begun."""
    if not parts:
        return []
    lines = _typed(parts[0].manifest)
    if study.study in ("deployments", "repeats"):
        lines += _again(f"{study.folder}/config.yaml", "sweep", study.run_id)
    purpose = "Each part has its own versions, seeds and files; they stand with it above and in its report."
    code = Code("The command that reproduces it", _shell(lines))
    return [Section("provenance", "Provenance", purpose, (code,))]


def brief(run: Run) -> list[Block]:
    """Facts that identify a run, and the command that repeats it."""
    return [_facts(run.manifest), Code("The command that reproduces it", command(run))]


def command(run: Run) -> str:
    """Shell lines: the revision, the words as typed, and the same run with every value as resolved."""
    lines, verb = _typed(run.manifest), run.manifest.get("verb")
    if verb in ("sweep", "probe"):
        flags = [word for word in run.manifest.get("argv", []) if word == "--require"]
        lines += _again(f"{run.path}/config.yaml", verb, run.name, *flags)
    return _shell(lines)


def _typed(manifest: Mapping[str, Any]) -> list[str]:
    """Revision and words of the session that began a run."""
    begun = [*manifest.get("sessions_before", []), manifest][0]
    commit = (begun.get("git") or {}).get("commit")
    typed = [str(word) for word in begun.get("argv", [])]
    lines = [f"git checkout {commit}"] if commit else []
    if typed and typed[0].endswith(ENTRIES):
        lines += ["# as it was typed", shlex.join(["python", "-m", "loadgen", *typed[1:]])]
    return lines


def _again(config: str, verb: str, name: str, *flags: str) -> list[str]:
    """The same run from the saved configuration, into a folder of another name."""
    words = ["python", "-m", "loadgen", verb, "--config", config, f"run={name}-again", *flags]
    return ["# with every value as it was resolved, whatever the defaults have become", shlex.join(words)]


def _shell(lines: Sequence[str]) -> str:
    return CREDENTIALS.sub("", "\n".join(lines)) or UNKNOWN


def _facts(manifest: Mapping[str, Any]) -> tuple[Fact, ...]:
    host, git = manifest.get("host") or {}, manifest.get("git") or {}
    ended = manifest.get("ended_at")
    versions = {"Python": manifest.get("python"), **(manifest.get("versions") or {})}
    changes = " with local changes" if git.get("dirty") else ""
    clock = manifest.get("clock") or {}
    return (
        ("run", value(manifest.get("run_id"))),
        ("started", moment(manifest.get("started_at"))),
        ("ended", moment(ended) if ended else "did not end"),
        ("verb", value(manifest.get("verb"))),
        ("revision", f"{git['commit']}{changes}" if git.get("commit") else UNKNOWN),
        ("versions", ", ".join(f"{name} {value(version)}" for name, version in versions.items())),
        ("host", f"{value(host.get('name'))}, {value(host.get('system'))}, {value(host.get('cpus'))} CPUs"),
        ("clock", f"{figure(clock['time_scale'])} x real time" if "time_scale" in clock else UNKNOWN),
        ("seeds", f"{manifest.get('seed', UNKNOWN)}, of the prompts {manifest.get('prompt_salt', UNKNOWN)}"),
    )


HOSTS = ("host", "role", "clock offset (ms)", "not reached for (s)", "requests")


def hosts_table(hosts: Sequence[Mapping[str, Any]]) -> Table:
    """The hosts of a run: a load host's requests are those it sent, a node's those it answered."""
    rows = tuple(
        (
            " ".join(filter(None, (host.get("name"), host["address"]))),
            value(host.get("role")),
            f"{figure(host['clock_offset_ms'])} ± {figure(host['clock_within_ms'])}"
            if "clock_offset_ms" in host
            else "",
            figure(host.get("lost_s")),
            value(host.get("requests")),
        )
        for host in hosts
    )
    return Table("Hosts, as seen from the driver's", HOSTS, rows)


def _engine(manifest: Mapping[str, Any]) -> str:
    """Arguments and models as the servers report them; empty if none does."""
    server = manifest.get("server") or {}
    replicas = {name: replica.get("told") for name, replica in (server.get("replicas") or {}).items()}
    tree = {"models": server.get("models"), "engine": server.get("engine"), "replicas": replicas}
    known = {key: value for key, value in tree.items() if value}
    return CREDENTIALS.sub("", json.dumps(known, indent=2, sort_keys=True)) if known else ""
