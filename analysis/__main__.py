"""Read run folders and other tools' results, and plan with them.

examples:
  python -m analysis show runs/20261121-091200-a1b2                the verdict and its evidence
  python -m analysis show runs/20261121-091200-a1b2 --recompute    computed again from its Parquet files
  python -m analysis show runs/tp8 slo.ttft_p90_ms=500             the same sweep judged by another bound
  python -m analysis report runs/20261121-091200-a1b2              one HTML file with figures and provenance
  python -m analysis compare runs/tp8 runs/tp4                     capacities side by side, and their ratio
  python -m analysis plan runs/tp8 demand.peak_qps=200 plan.spare_nodes=1 plan.node_hour_usd=16
  python -m analysis plan layout=dp2_tp4_ep4 demand.peak_qps=200   with a prediction instead of a run
  python -m analysis export runs/tp8 --format csv --out tp8.csv    its requests, or jsonl
  python -m analysis show profile_export.jsonl slo.ttft_p90_ms=2000    another tool's result, judged here
  python -m analysis calibrate runs/recipe --out node7.yaml        constants of the engine model from probes
  python -m analysis calibrate --forward times.json --out node7.yaml    or from exact batches of vLLM
  python -m analysis live runs/20261121-091200-a1b2                follow a run or study in a browser
  python -m analysis live runs/tp8 --port 8090                     on a port of your choice
"""

import sys
from collections.abc import Sequence

from analysis.grammar import grammar, parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = parser(__doc__).parse_args(words[:1]).verb
    arguments = grammar(verb).parse_intermixed_args(words[1:])
    # Acts bring numpy, Arrow and the compiled loops, for which help does not wait.
    from analysis import acts

    return acts.done(verb, arguments)


if __name__ == "__main__":
    sys.exit(main())
