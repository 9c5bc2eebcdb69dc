"""Last log lines of an application that does not start: Serve's messages, and its processes' output.

Raises nothing: the caller already has an error to report.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from cluster.ray_session.node_tasks import gather, on_node
from conf.io.one_line import one_line
from conf.io.secret import masked
from conf.ray_patches import logs_folder

LINES, LETTERS = 200, 400
"""Most lines of a process, more than Python's stack of a crash, and letters of a line (our choice)."""
TAIL_BYTES = 2**16
NEWEST = 3
"""Most processes of an application that are read on a node (our choice)."""
NODES, NODE_TIMEOUT_S = 8, 30.0
"""Most nodes that are asked for logs, and the seconds they may take together (our choice)."""
NAMED = ":actor_name:ServeReplica:{app_name}:"
"""Ray's line about the actor in such a file, before what the actor itself writes."""
MARK = re.compile(r":(job_id|actor_name|task_name):")

CAUSES = (
    (
        r"SIGILL|illegal instruction",
        "illegal instruction: a library was built for another CPU; install a build for this one",
    ),
    (
        r"out of memory|OutOfMemory|MemoryError|cannot allocate memory|running low on memory"
        r"|no available memory for the cache",
        "out of memory: free some, or choose a smaller model, context or share (engine.args)",
    ),
    (
        r"address already in use|EADDRINUSE|errno 98\b",
        "port in use: end what listens there, or an earlier deployment, and try again",
    ),
    (
        r"not a valid model identifier|does not appear to have a file named|cannot find the requested files"
        r"|couldn't connect to .* to load|LocalEntryNotFound|cannot find any model weights"
        r"|unrecognized model in|repo id must|no such file or directory: .*(config\.json|safetensors)",
        "model folder: the weights or the tokeniser are not where vLLM looks; see engine.model_path",
    ),
    (r"no space left on device", "disk full: free space on the node, in /tmp and in the caches"),
    (
        r"failed to infer device type|no (cuda|hip) gpus are available|hipErrorNoDevice",
        "no GPU: the process sees none; run python -m cluster preflight",
    ),
)
"""Words that failed processes write, in any case, and their meaning."""
SAYS_WHY = re.compile(r"^[\w.]*(Error|Exception|Exit)\b.*\S|Fatal Python error|\*\*\* SIG[A-Z]+ received")
NO_CAUSE = re.compile(r"Some common causes include|See (the )?(stack trace|root cause|controller logs)")
"""Ray lists possible causes, memory among them, for every death."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """The cause in one line, and printable, bounded log lines, each source below a line that names it."""

    why: str = ""
    lines: tuple[str, ...] = ()


def last_words(
    details: Mapping[str, Any], app_name: str, environment: Mapping[str, str], since_s: float = 0.0
) -> LastWords:
    """Last words about an application, from Serve's tree of details and the logs on the nodes.

    A log that was not written to since `since_s` (wall clock) belongs to an earlier application of the same
    name. Secrets in `environment`, and text that looks like a key, are masked.
    """
    sources = {name: text.splitlines() for name, text in _messages(details, app_name)} | _logs(
        app_name, since_s
    )
    kept = {
        source: [one_line(masked(line, environment), LETTERS) for line in lines if line.strip()][-LINES:]
        for source, lines in sources.items()
    }
    lines = tuple(line for source, own in kept.items() if own for line in (f"--- {source}", *own))
    return LastWords(why([line for own in kept.values() for line in own]), lines)


def why(lines: Sequence[str]) -> str:
    """The usual cause that the lines show, with the line that shows it; else the last line with an error."""
    relevant = [line for line in lines if not NO_CAUSE.search(line)]
    for words, cause in CAUSES:
        shown = [line for line in relevant if re.search(words, line, re.IGNORECASE)]
        if shown:
            return f"{cause} ({shown[-1]})"
    return next((line for line in reversed(relevant) if SAYS_WHY.search(line)), "")


def _messages(details: Mapping[str, Any], app_name: str) -> Iterable[tuple[str, str]]:
    """Serve's message on every deployment: the traceback if its constructor raised."""
    app = details.get("applications", {}).get(app_name, {})
    for name, deployment in app.get("deployments", {}).items():
        yield f"Ray Serve on {name}", str(deployment.get("message", ""))


def _logs(app_name: str, since_s: float) -> dict[str, list[str]]:
    """Last lines of the newest logs of the application's replicas on each node; empty if none answers."""
    try:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]][:NODES]
        tasks = {node: on_node(node, _read_here).remote(app_name, since_s) for node in nodes}
        logs_by_node, _ = gather(tasks, NODE_TIMEOUT_S, force=True)
    except (RayError, RuntimeError, ValueError):  # the cluster is gone
        return {}
    return {name: lines for logs in logs_by_node.values() for name, lines in logs.items()}


def _read_here(app_name: str, since_s: float) -> dict[str, list[str]]:
    """Runs on a node: last lines of stderr and stdout of the application's newest processes."""
    return read_logs(logs_folder(), app_name, since_s)


def read_logs(folder: Path, app_name: str, since_s: float = 0.0) -> dict[str, list[str]]:
    """The last lines of the newest files of each kind in a folder of Ray's logs, by the file's name.

    Several, because Serve may already have started a replacement of the replica that failed.
    """
    named, logs = NAMED.format(app_name=app_name).encode(), {}
    for kind in (".err", ".out"):
        kept = 0
        files = sorted(folder.glob(f"worker-*{kind}"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in [file for file in files if file.stat().st_mtime >= since_s]:
            with file.open("rb") as log:
                ours = named in log.read(TAIL_BYTES)
                log.seek(max(0, file.stat().st_size - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
            lines = [line for line in lines if line.strip() and not MARK.match(line)]
            if ours and lines:
                logs[file.name] = lines[-LINES:]
                kept += 1
            if kept == NEWEST:
                break
    return logs
