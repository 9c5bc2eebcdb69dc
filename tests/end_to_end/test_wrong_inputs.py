"""Wrong inputs to loadgen, analysis, cluster and serve_apps: each is answered in one line that helps."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from analysis.__main__ import main as analysis
from cluster.__main__ import main as cluster
from conf import ConfigError, load
from conf.io.one_line import nearest
from conf.keys import fields_of, keys
from conf.specs import experiment
from conf.typed import fits, wrong
from loadgen.__main__ import main as loadgen
from loadgen.cli import machine
from serve_apps.__main__ import main as serve_apps
from tests.support.runs.golden import GOLDEN

Main = Callable[[Sequence[str]], int]
ROOMS: dict[str, Main] = {
    "loadgen": loadgen,
    "analysis": analysis,
    "cluster": cluster,
    "serve_apps": serve_apps,
}
FOREIGN = ("full_key", "object_type", "Errno", "subclass", "AnyNode", "ListConfig", "of type", "NoneType")
FOREIGN += ("Traceback", "invalid choice", "unrecognized arguments")
"""Words of the libraries beneath, which no user should have to know."""
FILES = {
    "clustr.yaml": "clustr: {nodes: 4}\nengine: {kind: simulated}\n",
    "slow.yaml": "slo: {name: mine, ttft_p90_ms: fast, tpot_p90_ms: 3}\nengine: {kind: simulated}\n",
    "typo.yaml": "slo: {name: mine, ttft_p90: 3, tpot_p90_ms: 3}\nengine: {kind: simulated}\n",
    "part.yaml": "engine: {kind: simulated}\n",
    "kind.yaml": "engine: {kind: simulatd}\n",
    "list.yaml": "[1, 2]\n",
    "card.yaml": "engine: {kind: simulated}\nmodel: {posterior: {engines: [a], releases: {vLLM 9: {}}}}\n",
    "twice.yaml": "seed: 1\nengine: {kind: simulated}\nseed: 2\n",
    "file": "in the way\n",
}

EXTERNAL = "sweep engine=external target.urls=[http://127.0.0.1:1]"
# With a dry run, and without one: refused by both in the same words, before anything starts.
SWEPT = {
    # a key without its group, or mistyped
    "sweep nodes=4": "did you mean 'cluster.nodes=4'?",
    "sweep prefix_hit=.5": "did you mean 'workload.prefix_hit=0.5'?",
    "sweep urls=[http://127.0.0.1:1]": "did you mean 'target.urls'?",
    "sweep api_key_env=hush": "did you mean 'target.api_key_env'?",
    "sweep slo.ttft_p90=900": "did you mean 'slo.ttft_p90_ms=900'",
    "sweep serch=quick": "did you mean 'search'?",
    "sweep clustr.nodes=4": "did you mean 'cluster.nodes=4'?",
    "sweep foo=1": "unknown key 'foo'; choose from cluster, hardware, model",
    "sweep quick": "did you mean 'search=quick'?",
    "sweep matrix.layot=[dp1_tp8_ep8,dp2_tp4_ep4]": "did you mean 'layout'?",
    "progressive progressive.run=1": "did you mean 'progressive.runs=1'?",
    # a choice that is not there
    "sweep search=quik": "did you mean 'quick'?; available: publish",
    "sweep slo=strict": "unknown choice 'slo=strict'; available: default, interactive",
    "sweep workload.arrivals.kind=poison": "did you mean 'poisson'?",
    "sweep routing.policy=fast": "must be one of leastconn, roundrobin",
    # a value of another kind
    "sweep slo.ttft_p90_ms=fast": "slo.ttft_p90_ms=fast must be a number above 0",
    "sweep engine=external target.urls=http://127.0.0.1:1": "must be a list: target.urls=[http://HOST:PORT,...]",
    "sweep workload.input_tokens=many": "must be a group of keys: workload.input_tokens.mean=...",
    "sweep target=http://user:hunter2@127.0.0.1:1": "error: target must be a group of keys: target.urls=",
    "sweep cluster.nodes=1.5": "cluster.nodes=1.5 must be a whole number",
    "sweep fleet.record_itl=maybe": "fleet.record_itl=maybe must be true or false",
    "sweep fleet.actors=null": "fleet.actors has no value; give it a whole number from 1 to 10000 or",
    "probe profile_qps=3": "profile_qps must be a list: profile_qps=[[SECOND,QPS],...]",
    # no value, or one that cannot be
    "sweep slo.ttft_p90_ms=": "slo.ttft_p90_ms has no value; write slo.ttft_p90_ms=VALUE",
    "sweep slo.ttft_p90_ms=nan": "slo.ttft_p90_ms=nan must be finite, a number above 0",
    "sweep engine.time_scale=0": "engine.time_scale=0 must be 0.1 to 10",
    "sweep workload.prefix_hit=1": "must be at least 0 and below 1",
    # beyond reason
    "probe rate_qps=1e9": "rate_qps=1000000000.0 must be above 0 and at most 100000",
    "probe rate_qps=9e4 duration_s=9e4": "requests are more than the 1e+08 that a run holds",
    "probe profile_qps=[[0,1e9]]": "at most 2.592e+06 s and 100000 QPS per node",
    "probe http://127.0.0.1:9 rate_qps=1 fleet.cpus_per_actor=2": "fleet.cpus_per_actor belongs to",
    "sweep fleet.actors=100000": "fleet.actors=100000 must be 1 to 10000",
    # contradictions
    "sweep search.min_windows=1000": "need 40000 s, above search.budget_s=345; lower search.min_windows to 8",
    "sweep search.budget_s=20": "shorten search.window_s, or raise search.budget_s to 80",
    "sweep seed=1 seed=2": "seed is given twice; leave one of them out",
    "sweep target={} target.urls=[]": "target and target.urls set the same",
    "probe rate_qps=4 concurrency=4": "exclude each other",
    "sweep cluster.nodes=4": "use cluster=laptop_4n or cluster.session=fake",
    # what nothing would honour
    "sweep target.urls=[http://127.0.0.1:1]": "target.urls belongs to engine=external; leave it out",
    "sweep target.api_key_env=HOME": "target.api_key_env belongs to engine=external",
    "sweep cluster.address=10.0.0.1:6379": "cluster.address belongs to cluster.session=address",
    "sweep workload=character workload.input_tokens.mean=3000": "conversations give the requests their",
    "sweep routing.vnodes=10": "routing.vnodes belongs to routing=consistent_hash or bounded_hash",
    "sweep routing.load_factor=2": "routing.load_factor belongs to routing=bounded_hash",
    "sweep engine.stall_mean_s=2": "belongs to engine.stall_every_steps above 0",
    "sweep engine.drift_memory_s=2": "belongs to engine.drift_sd above 0",
    "sweep workload.images.width_px=512": "belongs to images, which workload.images.most=N adds",
    "sweep engine.args.max_num_seqs=1": "engine.args belongs to engine=vllm or",
    "sweep rate_qps=4": "rate_qps belongs to probe",
    "sweep workload.output_tokens.values=[2,200]": "kind=fixed has no values; kind=mixture has them",
    "sweep workload.output_tokens.kind=mixture": "0 values and 0 weights; give each value one",
    "sweep 'workload.output_tokens={kind: mixture, values: [2,200], weights: [1]}'": "2 values and 1 weights",
    "sweep 'workload.output_tokens={kind: mixture, values: [2,9], weights: [.5,.6]}'": "weights are shares",
    "probe rate_qps=4 workload.output_tokens.mean=9 workload.output_tokens.kind=mixture "
    "workload.output_tokens.values=[2,9] workload.output_tokens.weights=[.5,.5]": "follows from its values",
    "sweep engine=vllm": "engine=vllm needs GPUs, which cluster=laptop only pretends to have",
    "sweep model=qwen3_vl_235b_bf16 layout=dp1_tp4 engine.activation_bytes=150e9": "does not fit",
    "sweep engine.max_model_len=300000": "exceeds the model's 262144 tokens",
    "sweep workload.input_tokens.mean=40000": "tokens exceed the 32768 that the engine holds",
    "sweep hardware=mi308x": "fp8_flop_per_s is unknown",
    "probe": "probe needs rate_qps",
    # what a prediction alone replays, and what no replay knows
    "probe rate_qps=4 requests=100": "requests=... needs concurrency=...; rate_qps=... is held for",
    "probe concurrency=4 requests=4": "requests=4 must be above concurrency=4: the first requests only",
    "sweep workload.arrivals.kind=vllm_bench": "sends a number of requests, which predict",
    "probe rate_qps=4 workload.arrivals.kind=vllm_bench": "take kind=poisson, or kind=gamma",
    "predict rate_qps=4 workload.arrivals.kind=vllm_bench": "which predict rate_qps=... requests=N replays",
    "predict requests=100": "requests=... needs rate_qps=... or concurrency=...",
    "predict rate_qps=8 requests=0": "requests=0 must be 1 to 100000000",
    "predict rate_qps=8 requests=1000000": "are more than the 50000 of a replay; lower them",
    "predict concurrency=10 requests=9": "requests=9 cannot keep concurrency=10 in flight",
    "predict concurrency=0": "concurrency=0 must be at least",
    "predict rate_qps=8 concurrency=8": "exclude each other",
    "predict rate_qps=8 requests=9 duration_s=60": "duration_s belongs to probe",
    "predict rate_qps=8 requests=9 search.budget_s=60": "a replay sends a number of requests; leave it out",
    "predict rate_qps=8 requests=9 workload=character": "an empty service, which has no sessions yet",
    "predict concurrency=8 workload=chat_sessions": "an empty service, which has no sessions yet",
    "predict concurrency=8 workload.arrivals.kind=gamma": "a closed loop, which has no arrivals",
    "predict rate_qps=8 requests=9 cluster.nodes=4 routing=per_node": "but routing=per_node makes 4",
    "predict rate_qps=8 requests=9 workload.arrivals.kind=vllm_bench seed=4294967296": "takes 0 to 42949672",
    "predict concurrency=8 requests=9 workload.input_tokens.mean=9000000": "exceed the",
    "predict matrix.requests=[null,9] rate_qps=8": "some cells are replays of a number of requests and some",
    "sweep progressive.runs=3": "progressive.* belongs to the verb progressive",
    "probe rate_qps=4 search.budget_s=60": "search.budget_s belongs to a search",
    "predict fleet.actors=2": "fleet.actors belongs to what is measured",
    "predict search.min_windows=9": "search.min_windows belongs to what is measured",
    "sweep engine=external target.urls=[http://127.0.0.1:1] target.api_key_env=UNSET": "no environment var",
    f"{EXTERNAL} target.omit=[model]": "target.omit[0] must be one of stream_options, ignore_eos, min_tokens",
    f"{EXTERNAL} target.omit=ignore_eos": "target.omit must be a list: target.omit=[stream_options,...]",
    f"{EXTERNAL} target.max_tokens_field=tokens": "must be one of max_tokens, max_completion_tokens",
    f"{EXTERNAL} target.max_tokens_field=max_completion_tokens": "is a field of chats; add workload.prompt=",
    f"{EXTERNAL} target.list_models=perhaps": "target.list_models must be true or false",
    f"{EXTERNAL} target.ca_file=none.pem": "none.pem: No such file or directory; give the CA's certificates",
    f"{EXTERNAL} target.ca_file=.": "Is a directory; give the CA's certificates in PEM form",
    f"{EXTERNAL} target.ca_file=file": "target.ca_file: no certificate in PEM form",
    "sweep target.omit=[ignore_eos]": "target.omit belongs to engine=external; leave it out",
    "sweep --require": "--require belongs to probe",
    # files and folders
    "sweep --config .": ". is a folder; name a file, such as config.yaml",
    "sweep --config none.yaml": "cannot read none.yaml: No such file",
    "sweep --config clustr.yaml": "clustr.yaml: unknown key 'clustr.nodes'; did you mean 'cluster.nodes=4'?",
    "sweep --config slow.yaml": "slow.yaml: slo.ttft_p90_ms=fast must be a number",
    "sweep --config typo.yaml": "typo.yaml: unknown key 'slo.ttft_p90'; did you mean 'slo.ttft_p90_ms=3'?",
    "sweep --config part.yaml": "part.yaml: cluster, hardware, model, layout, routing, workload, slo,",
    "sweep --config kind.yaml": "unknown engine kind 'simulatd'; did you mean 'simulated'?",
    "sweep --config list.yaml": "list.yaml is not a mapping",
    "sweep --config twice.yaml": "cannot read twice.yaml: a key is there twice in",
    "sweep 'engine.args={a: 1, a: 2}'": "engine.args: the value is not YAML (a key is there twice)",
    "sweep 'seed=!!bool hunter2'": "seed: the value is not YAML",
    "predict --config card.yaml engine.version='vLLM 9'": "model.posterior: 'launch'",
    "sweep model.config_json=.": ". is a folder; name a file, such as config.json",
    "sweep engine.constants=none.yaml": "cannot read none.yaml: No such file",
    "sweep out=file": "out=file: cannot write to file: Not a directory; choose another folder",
    "sweep out=/proc/runs": "out=/proc/runs: cannot write to /proc",
    "sweep layout=dp1_tp1": "may have 32768, and vLLM would not start; choose a larger layout, or lower",
    "sweep model=llama31_405b_fp8": "expert parallelism but Llama-3.1-405B-Instruct-FP8 is dense",
    "sweep engine=vllm cluster=mi325x_1n layout=dp1_tp1": "lower engine.args.max_model_len",
    "sweep engine=vllm cluster=mi325x_1n engine.args.blok_size=3": "did you mean 'block_size'?",
    "sweep layout=1p1d_tp4_ep4 workload.prefix_hit=.5": "MoRI-IO needs the cache off; use layout.connector",
    # words of another verb
    "sweep engine.defect=.1": "engine.defect belongs to quality",
    "sweep quality.load=idle": "quality.load belongs to quality",
    "quality b.engine.defect=.1 quality.prompts=64": "raise it to 432",
    "sweep matrix.seed=[1,2]": "all cells have the same seed; give seed=... alone",
    "sweep matrix.layout=[dp1_tp8_ep8] search.repeats=3": "a cell is one sweep, not the 3",
    "sweep matrix.layout=[nonsense]": "unknown choice",
    "compare matrix.b.layout=[dp1_tp8_ep8]": "compare takes one value",
    "recipe workload=smoke": "workload: recipe has its own workloads",
    "recipe slo.ttft_p90_ms=900": "judges nothing",
    "recipe search=standard": "judges nothing",
    "recipe engine.max_model_len=3000": "exceed the 3000 that the engine holds",
    "recipe concurrency=4": "concurrency belongs to probe",
    "sweep --live eighty": "--live eighty: give a port",
    "sweep --live 192.0.2.1:9000": "cannot listen there",
    "predict --live 0": "--live belongs to sweep or probe",
    "recommend demand.peak_qps=20 --live 0": "recommend loads with --measure only",
    "progressive --live 0": "this clock is virtual",
    f"quality {GOLDEN} {GOLDEN} --live 0": "these answers are on record",
    "compare layout=dp2_tp4_ep4": "A and B are the same",
    "compare one.yaml b.seed=2": "takes two config.yaml",
    "compare b.workload=smoke": "workload differs; give both sides the same",
    "compare b.slo.tpot_p90_ms=50": "slo differs",
    "compare b.cluster=laptop_4n": "cluster.nodes or routing=per_node differs",
    "compare b.layout=dp2_tp4_ep4 search.repeats=3": "one pair of sweeps",
    "compare b.engine.time_scale=5": "engine.time_scale differs; give both sides the same",
    "compare b.layout=dp2_tp4_ep4 b.seed=2": "seed belongs to both: seed=2",
    "compare b.layout=dp2_tp4_ep4 a.run=mine": "run belongs to both: run=mine",
    "predict search.deployments=2": "add search.deployments=1 search.repeats=1",
    "probe rate_qps=1 search.deployments=2": "add search.deployments=1 search.repeats=1",
    "sweep search=standard search.expected_qps=5": "needs search.start=prediction",
    "sweep search=standard search.deployments=3": "search.budget_s=900 is too short for",
    f"{EXTERNAL} engine.time_scale=5": "belongs to engine=simulated",
    "probe engine.time_scale=5 concurrency=4": "is a closed loop: engine.time_scale=5 would multiply the way",
    "predict engine.time_scale=5": "predict has no real clock; leave engine.time_scale out",
    "recipe cluster=laptop_4n": "measures one node, not cluster.nodes=4",
    "recipe engine.time_scale=5": "recipe measures on the real clock, not at engine.time_scale=5",
    "progressive progressive.profile=quick progressive.requests_per_user=10": "leave progressive.profile out",
    "progressive workload=chat_5600_140_varied progressive.lengths=workload": "needs fixed lengths",
    "progressive workload=chat_sessions progressive.lengths=workload": "without sessions",
    "progressive workload=chat_5600_140_varied": "add progressive.lengths=workload",
    "progressive workload.input_tokens.mean=3000": "progressive sends requests of the paper's lengths",
    "progressive fleet.actors=2": "one request at a time",
    "progressive engine.time_scale=2": "leave engine.time_scale out",
    "progressive rate_qps=3": "rate_qps belongs to probe",
    "progressive model.served_name=m layout=dp2_tp4_ep4": "measures one replica, not 2",
    f"progressive {EXTERNAL.partition(' ')[2]} progressive.clock=virtual": "needs engine=simulated",
    # a recommendation
    "recommend": "a plan needs a demand: demand.peak_qps=QPS",
    "recommend demand.peak_qps=200 recommend.layouts=[dp2_tp4]": "or 'dp2_tp4_ep4'",
    "recommend demand.peak_qps=200 layout=dp1_tp8": "recommend.layouts=[A,B]",
    "recommend demand.peak_qps=200 layout.max_num_batched_tokens=9": "recommend.budgets=",
    "recommend demand.peak_qps=200 recommend.budgets=[4096,4096]": "a value twice",
    "recommend demand.peak_qps=200 recommend.hits=[.5] workload.prefix_hit=.2": "recommend.hits",
    "recommend demand.peak_qps=200 rate_qps=2": "finds the rate of each shape itself",
    "recommend demand.peak_qps=200 quality=default": "belongs to the verb quality; leave it out",
    "recommend demand.peak_qps=200 matrix.layout=[a,b]": "belongs to predict and sweep",
    "recommend demand.peak_qps=2 engine=external target.urls=[http://127.0.0.1:1]": "engine=external stands",
    "recommend demand.peak_qps=2 cluster.gpus_per_node=1 recommend.layouts=[dp1_tp8]": "a smaller layout",
    "recommend demand.peak_qps=2 cluster.gpus_per_node=1 recommend.layouts=[dp1_tp8,2p1d]": "no shape is",
    "recommend demand.peak_qps=200 --requests x.csv": "--requests belongs to an answer of predict",
    # verbs and flags
    "swep": "unknown verb 'swep'; did you mean 'sweep'?",
    "sweep --dryrun": "unknown flag '--dryrun'; did you mean '--dry-run'?",
    "sweep --slo.ttft_p90_ms=5": "keys are set without dashes: slo.ttft_p90_ms=5",
    "sweep --workload smoke": "keys are set without dashes: workload=VALUE",
}

OTHERS = {
    "loadgen": "name a verb: sweep, probe, predict",
    "loadgen resume": "resume takes one run folder",
    "loadgen predict --out answer.txt": "give it a name in .parquet or .csv or .json",
    "loadgen predict concurrency=8 --sensitivity": "explains a capacity; leave concurrency=... out",
    "loadgen predict --requests rows.csv": "--requests writes those of a replay; add requests=N",
    "loadgen predict concurrency=8 --requests rows.json": "--requests rows.json: cannot be written as such",
    "loadgen predict concurrency=8 --requests no/rows.csv": "cannot write to no; choose another --requests",
    "loadgen sweep --requests rows.csv": "--requests belongs to an answer of predict",
    "loadgen progressive progressive.clock=wall": "deploys one model: choose one",
    "loadgen predict --out .": "exists; choose another --out",
    "loadgen predict --out file": "exists; choose another --out",
    "loadgen predict --out none/file": "cannot write to",
    "loadgen predict --sensitivity matrix.rate_qps=[2,5]": "leave rate_qps=... out",
    "loadgen sweep --sensitivity": "--sensitivity belongs to an answer of predict",
    "loadgen probe --out x.parquet": "--out belongs to an answer of predict",
    "loadgen probe matrix.seed=[1,2]": "belongs to predict and sweep; probe takes one value",
    "loadgen predict engine.max_num_queued_reqs=9": "predict does not model refused requests",
    "loadgen predict rate_qps=300": "rate_qps=300 is above search.highest_qps=200; raise that too",
    "analysis": "name a verb: show, report, compare",
    "analysis shw .": "unknown verb 'shw'; did you mean 'show'?",
    "analysis show": "run is missing",
    "analysis show none": "none is not a run folder",
    "analysis show . --recompte": "unknown flag '--recompte'; did you mean '--recompute'?",
    "analysis show . slo.ttft_p90_ms=2000": "is not a run folder",
    "analysis compare . none": "is not a run folder",
    "analysis report none": "is not a run folder",
    "analysis export . --format csw": "did you mean 'csv'?; choose from",
    "analysis report . --out page.pdf": "give it a name in .html",
    "analysis plan demand.peak_qs=3": "did you mean 'demand.peak_qps=3'",
    "analysis plan peak_qps=3": "demand.peak_qps=",
    "analysis plan demand.peak_qps=fast": "demand.peak_qps=fast must be a number",
    "analysis plan demand.peak_qps=3 demand.peak_qps=4": "demand.peak_qps is given twice",
    "analysis plan demand.peak_qps=3 plan.basis=lower": "did you mean 'low'?",
    "analysis plan demand.peak_qps=3 nodes=4": "did you mean 'cluster.nodes=4'?",
    "analysis plan demand=3": "demand must be a group of keys: demand.peak_qps=...",
    "analysis calibrate nodes=4": "calibrate needs the folder of a run",
    "cluster prflight": "unknown verb 'prflight'; did you mean 'preflight'?",
    "cluster preflight nodes=4": "did you mean 'cluster.nodes=4'?",
    "cluster preflight cluster=laptop5": "did you mean 'laptop'",
    "cluster preflight clustr=laptop_4n": "did you mean 'cluster'?",
    "cluster preflight cluster=laptop cluster=laptop_4n": "cluster is given twice",
    "cluster render kubray": "did you mean 'kuberay'?",
    "cluster render kuberay --imge x": "unknown flag '--imge'; did you mean '--image'?",
    "cluster render ray-up cluster.nodes=many": "cluster.nodes=many must be a whole number",
    "cluster preflight laptop": "did you mean 'cluster=laptop'?",
    "serve_apps rendr": "unknown verb 'rendr'; did you mean 'render'?",
    "serve_apps render layot=dp1_tp8": "did you mean 'layout'?",
    "serve_apps render vllm_versio=0.30.0": "did you mean 'engine.vllm_version'?",
    "serve_apps render --jsn": "unknown flag '--jsn'; did you mean '--json'?",
    "serve_apps render layout=dp1_tp1": "may have 32768, and vLLM would not start",
    "serve_apps render engine.args.blok_size=3": "engine.args.blok_size is no argument of vLLM",
    "serve_apps render model=llama31_405b_fp8": "is dense: it has no experts to share out",
    "serve_apps model": "model takes one folder",
}


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def refused(main: Main, argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is on stderr of a command that ends with exit code 2: a line, or several on a whole file."""
    try:
        code = main(argv)
    except SystemExit as ended:
        code = int(ended.code or 0)
    output = capsys.readouterr()
    assert (code, output.out) == (2, ""), output
    lines = output.err.splitlines()
    assert len(lines) == 1 or "--config" in argv, lines
    for line in lines:
        assert line.startswith("error: ") and not [word for word in FOREIGN if word in line], line
        assert "hush" not in line
    return output.err


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("words", SWEPT)
def test_a_run_and_its_dry_run_refuse_alike(
    words: str, somewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = shlex.split(words)
    line = refused(loadgen, argv, capsys)
    assert SWEPT[words] in line
    assert refused(loadgen, [*argv, "--dry-run"], capsys) == line
    assert {file.name for file in somewhere.iterdir()} == set(FILES)


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("typed", OTHERS)
def test_every_command_refuses_in_one_line(
    typed: str, somewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room, *argv = shlex.split(typed)
    assert OTHERS[typed] in refused(ROOMS[room], argv, capsys)
    assert {file.name for file in somewhere.iterdir()} == set(FILES)


def test_every_key_says_in_our_words_what_it_cannot_be() -> None:
    root = {**(fields_of(experiment.Experiment) or {}), "engine": experiment.EmulatedEngine}
    for key, kind in keys(root):
        for value in ("soon", [[{}]], {"nowhere": 1}, None, 1.5, True):
            if not fits(kind, value):
                line = wrong(root, key, value)
                assert key in line and "\n" not in line and not [word for word in FOREIGN if word in line]


def test_a_value_that_may_be_secret_is_not_shown() -> None:
    root = {"target": {"api_key_env": str}, "engine": {"env": dict[str, int], "args": {"api_key": float}}}
    for key in ("target.api_key_env", "engine.env.WHAT", "engine.args.api_key"):
        assert "hush" not in wrong(root, key, ["hush"]) + wrong(root, key, "hush")


def test_everything_that_is_wrong_is_said_at_once(
    somewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster.nodes=many", "nods=4", "search=quik", "fleet.actors=0", "slo.ttft_p90_ms"]
    assert loadgen(["sweep", *words, "seed=1", "seed=2", "--dry-run"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6 and all(line.startswith("error: ") for line in lines)
    for part in ("whole number", "'cluster.nodes=4'", "'quick'", "must be 1 to", "key=value", "given twice"):
        assert sum(part in line for line in lines) == 1, part


def test_the_nearest_names_come_first_and_what_is_far_is_left_out() -> None:
    assert nearest("layot", ["slo", "layout", "out"]) == ["layout"]
    assert nearest("RUNS", ["seed", "run", "runs"])[0] == "runs"
    assert nearest("xyz", ["seed", "run"]) == []


def test_load_actors_may_share_cores_up_to_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)
    machine.refuse(load([f"out={tmp_path}", "fleet.actors=32"]))
    with pytest.raises(ConfigError, match="lower it to at most 32"):
        machine.refuse(load([f"out={tmp_path}", "fleet.actors=33"]))
