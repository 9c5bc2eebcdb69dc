"""Combinations of specs that are refused: rules about two or more groups, each with its remedy.

Every function raises ValueError with one line.
"""

from conf.io.check import require
from conf.specs.engine import Engine, SimulatedEngine
from conf.specs.layout import Cluster, Layout
from conf.specs.model import Model
from conf.specs.request_sizes import Images, tokens_of
from conf.specs.routing import SESSION_POLICIES, TEXT_POLICIES, Endpoints, Routing
from conf.specs.workload import Workload


def check_nodes(cluster: Cluster, engine: Engine, target: Endpoints) -> None:
    """Refuse several nodes in a session of one, and external endpoints without a URL."""
    require(
        cluster.session != "local" or cluster.nodes == 1 or engine.kind == "external",
        f"cluster.session=local is one node but cluster.nodes={cluster.nodes}; "
        "use cluster=laptop_4n or cluster.session=fake",
    )
    require(
        engine.kind != "external" or bool(target.urls),
        "engine=external needs target.urls=[http://host:port,...]",
    )


def check_prompts(workload: Workload, engine: Engine, target: Endpoints) -> None:
    """Refuse fields and texts that requests or engines do not have for this kind of prompt."""
    require(
        target.max_tokens_field == "max_tokens" or workload.prompt == "chat",
        f"target.max_tokens_field={target.max_tokens_field} is a field of chats; add workload.prompt=chat or "
        "leave it out",
    )
    require(
        not workload.tokenizer or engine.kind != "simulated" or workload.prompt == "token_ids",
        f"workload.prompt={workload.prompt}: the simulated engine counts words, not tokens of "
        "workload.tokenizer; set workload.prompt=token_ids",
    )


def check_layout(layout: Layout, cluster: Cluster, model: Model, engine: Engine) -> None:
    """Refuse a layout that does not fit its node, its model or its engine."""
    require(
        layout.gpus_per_node <= cluster.gpus_per_node,
        f"layout {layout.name} needs {layout.gpus_per_node} GPUs per node ({layout.shape}) but cluster "
        f"{cluster.name} has {cluster.gpus_per_node}; choose a smaller layout",
    )
    for side in filter(None, (layout.prefill_side, layout.decode_side)):
        require(
            model.heads % side.tensor_parallel == 0,
            f"layout {side.name}: TP{side.tensor_parallel} does not divide the {model.heads} attention heads "
            f"of {model.name}",
        )
    require(
        layout.quick_reduce == "none" or engine.kind in ("simulated", "vllm_emulated"),
        f"layout.quick_reduce={layout.quick_reduce} is of the simulated engine; for a real one set "
        "engine.env.VLLM_ROCM_QUICK_REDUCE_QUANTIZATION=INT8",
    )


def check_prefix_cache(workload: Workload, engine: Engine, layout: Layout) -> None:
    """Refuse shared beginnings of prompts for an engine without a prefix cache."""
    cold = isinstance(engine, SimulatedEngine) and not engine.enable_prefix_caching
    deployed = engine.kind != "external"
    for name in ("prefix_hit", "session_hit"):
        hit = getattr(workload, name)
        require(
            not (deployed and hit and layout.prefill and layout.connector == "moriio"),
            f"workload.{name}={hit} is never hit on layout {layout.name}: MoRI-IO needs the cache off; "
            "use layout.connector=nixl or set it to 0",
        )
        require(
            not (cold and hit),
            f"workload.{name}={hit} is never hit while engine.enable_prefix_caching=false; set one of "
            "them otherwise",
        )


def check_images(images: Images, model: Model, engine: Engine) -> None:
    """Refuse images that the model cannot see, or whose tokens it counts differently."""
    if not images.most:
        return
    require(
        model.image_token_px > 0,
        f"workload.images: model {model.name} sees no images; use model=qwen3_vl_235b_bf16 or leave them out",
    )
    require(
        engine.kind != "vllm_emulated",
        "workload.images: an emulated vLLM has no vision encoder; use engine=simulated",
    )
    counted = tokens_of(images.width_px, images.height_px, model.image_token_px)
    require(
        images.tokens in (0, counted),
        f"workload.images.tokens={images.tokens} but {model.name} makes {counted} of {images.width_px} x "
        f"{images.height_px} pixels; leave it out",
    )


def check_routing(routing: Routing, workload: Workload, engine: Engine, layout: Layout) -> None:
    """Refuse a policy for requests that lack what it routes by."""
    policy, sessions = routing.policy, workload.has_sessions
    require(
        policy not in SESSION_POLICIES or sessions,
        f"routing.policy={policy} goes by sessions but workload.sessions=0; use workload=chat_sessions, "
        "workload=character or routing=leastconn",
    )
    require(
        policy != "per_node" or not sessions,
        "routing=per_node gives every node requests of its own, so that a session would have several "
        "replicas; use routing=client_side",
    )
    require(
        policy not in TEXT_POLICIES or getattr(engine, "server", "") == "ray_llm",
        f"routing={policy} reads requests that ray.serve.llm has parsed, and a plain application "
        "passes them on unread; use engine=vllm with engine.server=ray_llm, or routing=consistent_hash",
    )
    require(
        policy not in TEXT_POLICIES or workload.prompt != "token_ids",
        f"routing={policy} goes by texts and not by token ids; set workload.prompt=text or chat",
    )
    require(
        policy != "kv_aware" or layout.prefill is None,
        f"routing=kv_aware was never tried with prefill engines, which layout {layout.name} has; use "
        "routing=prefix_affinity",
    )


def check_streams(cluster: Cluster, layout: Layout, engine: Engine, target: Endpoints) -> None:
    """Refuse one stream of arrivals per node where a node has no single address or replica."""
    urls, per_node = len(set(target.bases)), layout.replicas_per_node
    require(
        engine.kind != "external" or urls == cluster.nodes,
        f"routing=per_node needs one of target.urls for each node but there are {urls} and "
        f"cluster.nodes={cluster.nodes}; set cluster.nodes={urls} or use routing=leastconn",
    )
    require(
        engine.kind == "external" or per_node == 1,
        f"routing=per_node sends a node's stream to one replica but layout {layout.name} has "
        f"{per_node} per node; use a layout with replicas_per_node=1 or routing=leastconn",
    )
