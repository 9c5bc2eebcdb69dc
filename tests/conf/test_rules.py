"""conf.specs.rules: tables name only keys that exist, and each rule that others never meet is refused."""

from pathlib import Path

import pytest

from conf import ConfigError, load
from conf.keys import bare, fields_of
from conf.specs import experiment, planning, workload
from conf.specs.engine import ENGINES
from conf.specs.rules import RELATIONS, TABLE, table
from loadgen.cli import shape_words, words

MODULES = experiment, planning, workload, words, shape_words
SPECS = {name: spec for module in MODULES for name, spec in vars(module).items()}
RULES = [(path, spec) for path in (TABLE, words.RULES) for spec in table(path)]


def is_there(spec: object, key: str) -> bool:
    """True if a dotted key is a field or a property of a spec, or of one of the kinds of an engine."""
    name, _, inner = key.partition(".")
    specs = list(ENGINES.values()) if spec is experiment.Engine else [spec]
    kinds = [fields[name] for each in specs if name in (fields := fields_of(each) or {})]
    if not kinds or not inner:
        return bool(kinds) or any(isinstance(getattr(each, name, None), property) for each in specs)
    return is_there(bare(kinds[0])[0], inner)


@pytest.mark.parametrize(("path", "spec"), RULES, ids=[spec for _, spec in RULES])
def test_every_key_of_a_rule_exists(path: Path, spec: str) -> None:
    also = experiment.Experiment if issubclass(SPECS[spec], words.Command) else SPECS[spec]
    for rule in table(path)[spec]:
        assert set(rule) == {"when", "say"}
        for keys, wanted in rule["when"].items():
            relations = dict(wanted) if isinstance(wanted, dict) else {}
            others = [other for name, other in relations.items() if name != "not" and isinstance(other, str)]
            assert set(relations) <= {*RELATIONS, "not"}
            for key in [*keys.split("|"), *others]:
                assert is_there(SPECS[spec], key) or is_there(also, key), key


URLS = "engine=external target.urls=[http://a:1,http://b:1] cluster.nodes=3"
CHAT, TALK = "workload=chat_sessions", "workload=character"
SEEING = "workload=vision_100_200 model=qwen3_vl_235b_bf16 layout=dp1_tp8"
UNIFORM = " ".join(
    f"workload.conversations.answer_tokens.{end}" for end in ("kind=uniform", "cv=0", "spread=.1")
)
DEEPSEEK = "model=deepseek_v32_fp8 layout=dp1_tp8"
SELDOM = {
    "workload.tokenizer=a workload.prompt=text": "the simulated engine counts words",
    "layout=1p1d_tp4_ep4 layout.prefill.tensor_parallel=3": "(prefill): TP3 does not divide the 64 attention",
    "engine=vllm layout.quick_reduce=int8": "layout.quick_reduce=int8 is of the simulated engine",
    "engine=vllm workload.prompt=text routing=kv_aware layout=1p1d_tp4_ep4": "never tried with prefill",
    f"{URLS} routing=per_node": "for each node but there are 2 and cluster.nodes=3",
    "routing=per_node layout=dp2_tp4_ep4": "layout dp2_tp4_ep4 has 2 per node",
    "routing.data_path=direct": "leastconn needs data_path=haproxy, not direct",
    "routing=client_side workload=chat_sessions routing.data_path=haproxy": "data_path=direct, not haproxy",
    "routing=consistent_hash workload=chat_sessions routing.data_path=direct": "haproxy or python_proxy, not",
    "routing=per_node concurrency=8": "one closed loop over all nodes",
    "layout=1p1d_tp4_ep4 layout.data_parallel=2": "data_parallel=2 with prefill engines is not supported",
    "layout.connector=nixl layout.transfer_mode=write": "connector=nixl only reads",
    "model.index_heads=2": "model.index_heads=2 needs latent attention",
    f"{DEEPSEEK} model.index_topk=0": "model.index_topk=0 must be at least 1 for model.index_heads",
    "model.bf16_layers=2": "is for a dense model, which has no model.experts",
    "search.lowest_qps=200": "search.lowest_qps must be below search.highest_qps",
    "workload.input_tokens.kind=conversation": "kind=conversation needs conversations",
    "workload.input_tokens.kind=empirical": "needs workload.trace=FILE, for kind=empirical",
    "workload.trace_block_tokens=16": "workload.trace_block_tokens needs workload.trace=FILE",
    "workload.session_hit=0.5": "needs workload.sessions=N",
    f"{CHAT} workload.prefix_hit=0.96": "must be above workload.prefix_hit=0.96",
    f"{CHAT} workload.session_hit=1": "must be at least 0 and below 1",
    f"{CHAT} engine.enable_prefix_caching=false": "is never hit while",
    "workload.sessions=-1": "must be 0 to",
    "workload.prefix_hit=.5 engine.enable_prefix_caching=false": "is never hit while",
    "workload.prefix_hit=1": "must be at least 0 and below 1",
    "workload.prefix_hit=-.1": "must be at least 0 and below 1",
    "routing=consistent_hash": "use workload=chat_sessions",
    "routing=client_side": "goes by sessions",
    "routing=bounded_hash routing.data_path=haproxy": "needs data_path=python_proxy, not haproxy",
    "routing=bounded_hash routing.load_factor=0.9": "must be at least 1",
    "routing=consistent_hash routing.vnodes=0": "must be at least 1",
    "routing=prefix_affinity workload.prompt=text": "a plain application passes them on unread",
    "routing=prefix_affinity engine=vllm": "not by token ids",
    f"{CHAT} routing=per_node cluster=laptop_4n": "use routing=client_side",
    f"{TALK} workload.prefix_hit=.5": "shared beginnings of their own",
    f"{TALK} workload.sessions=5": "shared beginnings of their own",
    f"{TALK} workload.arrivals.kind=constant": "begin as a Poisson process",
    f"{TALK} workload.input_tokens.kind=fixed": "give the requests their lengths",
    f"{TALK} concurrency=4": "open loop",
    f"{TALK} profile_qps=[[0,1],[60,2]]": "open loop",
    f"{TALK} routing=per_node": "several replicas",
    f"{TALK} workload.conversations.turns=1": "turns",
    f"{TALK} workload.conversations.max_prompt_tokens=700": "half of it above",
    f"{TALK} workload.conversations.system_tokens=-1": "system_tokens=-1 must be at least 0",
    f"{TALK} {UNIFORM}": "fixed or lognormal",
    f"{TALK} workload.conversations.truncation=smart": "truncation",
    "workload.images.most=1": "parts of a chat message",
    "workload=vision_100_200": "sees no images",
    f"{SEEING} workload.images.most=6": "must be 0 to 5",
    f"{SEEING} workload.images.least=2": "must not be above workload.images.most=1",
    f"{SEEING} workload.images.width_px=0": "must be 1 to",
    f"{SEEING} workload.images.tokens=7": "makes 1024 of 1024 x 1024 pixels",
    f"{SEEING} workload.prefix_hit=.5": "not modelled",
    f"{SEEING} engine=vllm_emulated": "no vision encoder",
}


@pytest.mark.parametrize("words", SELDOM)
def test_keys_that_do_not_go_together_are_refused_with_the_remedy(words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(words.split(" "))
    assert SELDOM[words] in str(refused.value) and "{" not in str(refused.value)
