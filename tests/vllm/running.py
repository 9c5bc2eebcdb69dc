"""A service that runs: loaded by the real fleet as `loadgen` loads it, and asked for vLLM's own counters."""

import re
import urllib.request
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.results.json_border import to_tree
from analysis.results.runs import Run, load_run
from conf import Experiment, load
from loadgen.run import measure
from loadgen.run.measure import Act, Site
from loadgen.run.run_folder import RunFolder
from loadgen.run.service import Service
from loadgen.search.segments import Start
from tests.support.words.words import over


@dataclass(frozen=True)
class Up:
    """The service, the words that describe it and its load, and where its run folders go."""

    served: Service
    words: Sequence[str]
    out: Path

    def run(self, verb: str, act: Act, *words: str) -> tuple[dict[str, Any], Run]:
        """Load the running service as `loadgen` does; the conclusion and the run's folder."""
        experiment = load(over(self.words, *over([f"out={self.out}", f"run={verb}"], *words)))
        folder = measure.create(RunFolder, experiment)
        site = Site(start, lambda *_: nullcontext(self.served))
        tree = to_tree(measure.measure(experiment, verb, folder, act, site, lambda *_, **__: None))
        return tree, load_run(folder.path)

    def counters(self, names: Sequence[str]) -> dict[str, float]:
        """vLLM's own totals, summed over reasons and replicas."""
        pages = self._pages()
        return {
            name: sum(
                float(value)
                for page in pages
                for value in re.findall(rf"^vllm:{name}{{.*}} (\S+)$", page, re.MULTILINE)
            )
            for name in names
        }

    def block_tokens(self) -> int:
        """Tokens of a block of the prefix cache, as every replica tells."""
        told = re.findall(r'^vllm:cache_config_info{.*\bblock_size="(\d+)"', "".join(self._pages()), re.M)
        (tokens,) = set(told)
        return int(tokens)

    def _pages(self) -> list[str]:
        urls = self.served.metrics_urls.values()
        return [urllib.request.urlopen(url, timeout=30).read().decode() for url in urls]


def start(experiment: Experiment, verb: str, emit: Any) -> tuple[Start, None]:
    return Start(prediction_qps=experiment.search.expected_qps), None
