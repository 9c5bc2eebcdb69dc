"""The golden run: a real run folder whose files hold what a reader may rely on from then on.

    python -m tests.support.runs.golden RUN        # makes tests/data/golden_run of the run folder RUN

A run of `make sweep` on this project's simulated engine, or the golden run itself after a change of the
posterior. What names the machine it ran on is written anew in neutral words, its request rows as today's
`loadgen` writes them, its capacity as today's posterior concludes, and the checksums of its manifest by the
changed files; every row is as it was measured.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis import load_run
from analysis.capacity import window_table
from analysis.results.figures import CapacityFigures
from analysis.results.json_border import to_tree
from analysis.results.recount import recount
from analysis.results.runs import Run
from analysis.results.verdicts import RunVerdict
from analysis.rows import metrics, parquet, records
from conf import load
from conf.compose import dump
from loadgen.run.run_folder import checksums

GOLDEN = Path(__file__).parents[2] / "data" / "golden_run"


def make(source: Path, target: Path) -> None:
    """A run folder like `source` that does not say where it was made."""
    run = load_run(source)
    shutil.copytree(source / "schedule", target / "schedule")
    records.write(metrics.with_latencies(run.requests()), target / "requests" / "part-000.parquet")
    records.write_series(run.clients(), target / "clients.parquet")
    records.write_series(run.timeseries(), target / "timeseries.parquet")
    table = run.windows()
    stated = table.schema.metadata | {b"schema_version": str(window_table.SCHEMA_VERSION).encode()}
    kept = pa.Table.from_pylist(table.to_pylist(), schema=window_table.WINDOWS.with_metadata(stated))
    parquet.write(kept, target / "windows.parquet")
    experiment = replace(load(base=source / "config.yaml"), out="runs", run=target.name)
    (target / "config.yaml").write_text(dump(experiment))
    words = neutral_words(run, target.name)
    lines = [json.dumps(neutral(event, words)) for event in run.events()]
    (target / "events.jsonl").write_text("\n".join(lines) + "\n")
    sweep = neutral(sweep_json(run.path), words) | {"capacity": concluded(run)}
    write_json(target / "sweep.json", sweep)
    manifest = neutral(run.manifest, words) | {"argv": ["loadgen", run.manifest["verb"]]}
    write_json(target / "manifest.json", manifest | {"files": checksums(target)})


def sweep_json(path: Path) -> dict[str, Any]:
    """sweep.json of a run's folder, with the folder where it lies."""
    return json.loads((path / "sweep.json").read_text()) | {"folder": str(path)}


def concluded(run: Run) -> dict[str, Any]:
    """The run's capacity by today's posterior, joined with its constants."""
    capacity, recorded = recount(run).capacity, run.verdict and run.verdict.capacity
    assert capacity and recorded and recorded.qps_per_replica
    replicas = recorded.qps_per_node.value / recorded.qps_per_replica.value
    tree: dict[str, Any] = to_tree(CapacityFigures.from_posterior(capacity, replicas).joined_like(recorded))
    return tree


def neutral_words(run: Run, name: str) -> dict[str, str]:
    """What is said instead of each word that names a machine or a folder."""
    host, server = run.manifest["host"], run.manifest["server"]
    nodes = dict.fromkeys(server["replica_nodes"].values())
    return {
        run.manifest["run_id"]: name,
        str(run.path): f"runs/{name}",
        host["name"]: "host",
        host["system"]: "Linux",
        **{node: f"node-{i}" for i, node in enumerate(nodes)},
        **{url: f"http://127.0.0.1:{8000 + i}" for i, url in enumerate(server["urls"])},
    }


def neutral(tree: Any, words: dict[str, str]) -> Any:
    """A tree with these words replaced, and every process id 0."""
    if isinstance(tree, dict):
        return {key: 0 if key == "pid" else neutral(value, words) for key, value in tree.items()}
    if isinstance(tree, list):
        return [neutral(value, words) for value in tree]
    return words.get(tree, tree) if isinstance(tree, str) else tree


def golden(**changes: Any) -> RunVerdict:
    """The verdict of the golden run, with these changes."""
    verdict = load_run(GOLDEN).verdict
    assert verdict
    return replace(verdict, **changes)


def unsealed(run: Path) -> Path:
    """The run without its sums, so that a test may change it."""
    tree = json.loads((run / "manifest.json").read_text())
    write_json(run / "manifest.json", {key: value for key, value in tree.items() if key != "files"})
    return run


def changed(path: Path, **changes: Any) -> Path:
    """A copy of the golden run at `path`, without its sums and with other values in its sweep.json."""
    run = unsealed(Path(shutil.copytree(GOLDEN, path)))
    write_json(run / "sweep.json", json.loads((run / "sweep.json").read_text()) | changes)
    return run


def write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make(Path(sys.argv[1]), Path(folder) / GOLDEN.name)
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(Path(folder) / GOLDEN.name, GOLDEN)
