"""The arrays of engines as tests look at them: the tokens of a step, and every KV block accounted for."""

from collections.abc import Iterator

import numpy as np

from serve_apps.engine_model.engine.native import NONE
from serve_apps.engine_model.engine.state import IDLE, KEPT, LOADING, RUNNING, RUNS_IDLE, Arrays


def chosen(arrays: Arrays, step: int, engine: int = 0) -> dict[int, int]:
    """The tokens that each request has in the step scheduled last, by the requests' serial numbers."""
    requests = arrays.requests[(arrays.requests["engine"] == engine) & (arrays.requests["last_step"] == step)]
    return dict(zip(requests["serial"].tolist(), requests["new"].tolist(), strict=True))


def check_integrity(arrays: Arrays, engine: int = 0) -> None:
    """Every KV block is either free or held, and a run is held as often as requests say."""
    books, runs = arrays.engines[engine], arrays.runs
    idle, run = 0, int(arrays.queues["head"][engine, IDLE])
    while run != NONE:
        assert runs[run]["refs"] == 0 and runs[run]["end"] > runs[run]["start"]
        idle += int(runs[run]["end"] - runs[run]["start"])
        run = int(arrays.run_links["next"][run, RUNS_IDLE])
    assert books["blank"] >= 0 and books["blank"] + idle == books["free"]
    refs: dict[int, int] = {}
    unnamed = 0
    mine = arrays.requests["engine"] == engine
    for request in arrays.requests[mine & np.isin(arrays.requests["place"], (RUNNING, LOADING, KEPT))]:
        for run in held_runs(arrays, int(request["cell"])):
            refs[run] = refs.get(run, 0) + 1
        unnamed += int(request["blocks"] - request["named"])
    assert all(runs[run]["refs"] == count for run, count in refs.items())
    held = sum(int(runs[run]["end"] - runs[run]["start"]) for run in refs)
    assert held + unnamed + books["free"] == books["blocks"]


def held_runs(arrays: Arrays, cell: int) -> Iterator[int]:
    """The runs behind a request's cells."""
    while cell:
        run, start = int(arrays.cells[cell]["run"]), arrays.cells[cell]["start"]
        yield run
        while arrays.runs[run]["start"] > start:
            run = int(arrays.runs[run]["before"])
            yield run
        cell = int(arrays.cells[cell]["below"])
