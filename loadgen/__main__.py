"""Maximum QPS per node of an LLM service within its latency bounds, with an interval.

examples:
  python -m loadgen sweep                               one simulated MI325X node on this machine (3 min)
  python -m loadgen sweep --dry-run search=standard     print the plan and how long it takes
  python -m loadgen sweep --live 8090                   follow it in a browser at http://127.0.0.1:8090/
  python -m loadgen sweep matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4] matrix.slo.tpot_p90_ms=[50,100]
  python -m loadgen sweep slo.itl_p99_ms=400 slo.joint=.9    bounds on gaps between tokens, and on all at once
  python -m loadgen probe rate_qps=2.5 duration_s=60    hold one rate; exit 3 if a bound is missed
  python -m loadgen probe rate_qps=2.5 --require        pass or fail, as soon as it is clear; exit 0, 3 or 6
  python -m loadgen predict layout=dp2_tp4_ep4          capacity by the engine model, in seconds, without load
  python -m loadgen predict --sensitivity               which constants of the model to measure first
  python -m loadgen predict matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4] matrix.workload.prefix_hit=[0,.5,.95]
  python -m loadgen predict matrix.engine=[simulated_aiter,simulated_triton]    AITER's kernels, and Triton's
  python -m loadgen predict cluster.nodes=3000 rate_qps=2.5     many nodes behind one balancer at one rate
  python -m loadgen predict concurrency=100 requests=100        replay a benchmark of 100 concurrent requests
  python -m loadgen predict rate_qps=8 requests=100 workload.arrivals.kind=vllm_bench seed=0  vLLM's arrivals
  python -m loadgen probe profile_qps=[[0,1],[60,4]]    ramp from 1 to 4 QPS per node within a minute
  python -m loadgen probe workload=trace workload.trace=FILE     replay a trace at its own times
  python -m loadgen probe concurrency=32                a closed loop, to compare with tools that use one
  python -m loadgen compare b.layout=dp2_tp4_ep4        capacity of B over that of A, on the same requests
  python -m loadgen recommend demand.peak_qps=200       which layout to buy, how many nodes, what to measure
  python -m loadgen recommend demand.peak_qps=200 recommend.layouts=[dp1_tp8,dp2_tp4_ep4] recommend.hits=[.5]
  python -m loadgen recommend demand.peak_qps=200 slo.tpot_p90_ms=50 recommend.budgets=[4096,8192] --measure
  python -m loadgen quality b.engine.defect=.02         same, degraded or undecided: B's answers beside A's
  python -m loadgen quality a.layout=dp1_tp8_ep8 b.layout=dp2_tp4_ep4 quality.load=2
  python -m loadgen progressive                         the MI325X paper's benchmark, its tables beside ours
  python -m loadgen progressive model=llama31_405b_fp8 layout=dp1_tp8 progressive.requests_per_user=10
  python -m loadgen progressive engine=simulated_aiter progressive.runs=10   with noise between runs
  python -m loadgen progressive http://127.0.0.1:8000 model=qwen3_235b_a22b_fp8
  python -m loadgen recipe run=node7                    probes for python -m analysis calibrate runs/node7
  python -m loadgen resume runs/20261121-091200-a1b2    continue a sweep that was cut short
  python -m loadgen sweep http://127.0.0.1:8000 isl=512 osl=64        an endpoint of yours
  python -m loadgen probe http://127.0.0.1:8000 model=NAME rate_qps=5 duration=20s
"""

import signal
import sys
from collections.abc import Sequence

from loadgen.cli.arguments import VERBS, parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    verb = next((word for word in words if word in VERBS), "")
    arguments = parser(verb, _description(verb)).parse_intermixed_args(words)
    if folder := getattr(arguments, "run_folders", None):
        arguments.words.append(f"out={folder}")
    _end_on_signals()
    # Acts bring numpy, Arrow and the compiled loops, for which help does not wait.
    from loadgen.cli import commands

    return commands.run(arguments)


def _description(verb: str) -> str:
    """The text of `--help`: of a verb with its examples, or of all verbs."""
    if not verb:
        acts = [f"  {name:<13}{purpose}" for name, purpose in VERBS.items()]
        return "\n".join([str(__doc__), "verbs:", *acts])
    examples = [line for line in str(__doc__).splitlines() if line.startswith(f"  python -m loadgen {verb} ")]
    return "\n".join([VERBS[verb], "", "examples:", *examples])


def _end_on_signals() -> None:
    """Let SIGINT and SIGTERM both end a run like Ctrl-C; a background job starts with SIGINT ignored."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
