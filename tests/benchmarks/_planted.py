"""The faults that `planted_faults.py` plants: each changes one line of one function."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of one function, as it is (`old`) and as a mistake would have it (`new`).

    `where` is MODULE:FUNCTION; a method is CLASS.METHOD. `old` stands exactly once in the function.
    """

    name: str
    where: str
    old: str
    new: str

    @property
    def module(self) -> str:
        """The module that has the function."""
        return self.where.split(":")[0]

    @property
    def function(self) -> str:
        """The function's qualified name."""
        return self.where.split(":")[1]

    @property
    def room(self) -> str:
        """The part of the product."""
        return self.module.split(".")[0]


FAULTS = (
    # statistics
    Fault(
        "certified at the 10 % quantile",
        "analysis.capacity.posterior:posterior",
        "certified=end(CERTIFIED)",
        "certified=end(2 * CERTIFIED)",
    ),
    Fault(
        "interval of 90 %, low end",
        "analysis.capacity.posterior:posterior",
        "low=end(tail)",
        "low=end(2 * tail)",
    ),
    Fault(
        "interval of 90 %, high end",
        "analysis.capacity.posterior:posterior",
        "high=end(1 - tail)",
        "high=end(1 - 2 * tail)",
    ),
    Fault(
        "interval of one limit at 90 %",
        "analysis.capacity.posterior:_limit_fit",
        "_at(TAIL,",
        "_at(2 * TAIL,",
    ),
    Fault(
        "order of windows by index alone",
        "analysis.capacity.posterior:posterior",
        "(window.stream or 0, window.index)",
        "(window.index, window.stream or 0)",
    ),
    Fault(
        "open above is never said",
        "analysis.capacity.posterior:posterior",
        "open_above=bool(1 - top > EDGE_MASS) or not any(found.rising for found in applied)",
        "open_above=False",
    ),
    Fault(
        "limits taken as independent",
        "analysis.capacity.posterior:_smallest",
        "1 - (1 - DEPENDENCE) * apart - DEPENDENCE * as_one",
        "1 - apart",
    ),
    Fault(
        "prior of a limit twice as wide",
        "analysis.capacity.limit_posterior:fit",
        "loads, centre, prior.sd)",
        "loads, centre, 2 * prior.sd)",
    ),
    Fault(
        "aborted windows count as steady",
        "analysis.capacity.limit_posterior:fit",
        "and not window.aborted]",
        "]",
    ),
    Fault(
        "quantile rounds its place down",
        "analysis.stats.quantiles:quantile",
        "math.floor(place), math.ceil(place)",
        "math.floor(place), math.floor(place)",
    ),
    Fault(
        "quantile counts unknown values",
        "analysis.stats.quantiles:quantile",
        "values[~np.isnan(values)]",
        "np.nan_to_num(values)",
    ),
    Fault(
        "interval of a quantile without what a stretch hides",
        "analysis.stats.dispersion:quantile_interval",
        "(1 + UNSEEN / seen.freedom)",
        "(1 + 0 / seen.freedom)",
    ),
    Fault(
        "dispersion without lags",
        "analysis.stats.dispersion:long_run",
        "total += 2 * parzen",
        "total += 0 * parzen",
    ),
    Fault(
        "dispersion below one",
        "analysis.stats.dispersion:overdispersion",
        "max(seen.variance, 1.0)",
        "seen.variance",
    ),
    Fault(
        "stretches of a pair as if independent",
        "analysis.capacity.paired_ratio:_Fit.noise",
        "max(seen.variance, seen.alone)",
        "seen.alone",
    ),
    Fault("pooled certified at 2.5 %", "analysis.stats.pooling:_certified", "(CERTIFIED)", "(TAIL)"),
    Fault("spread of repeats over n", "analysis.stats.pooling:repeated", "ddof=1", "ddof=0"),
    Fault("alpha spent at once", "analysis.stats.alpha_spending:spent", "** POWER", "** 0"),
    Fault(
        "growing queue ignores memory",
        "analysis.capacity.growing_queue:slope_t",
        "max(n * (1 - a) / (1 + a), 2.5)",
        "n",
    ),
    # rows and metrics
    Fault(
        "failures are unknown instead of infinite",
        "analysis.rows.metrics:_judged",
        "np.inf, known)",
        "np.nan, known)",
    ),
    Fault("queue time of rows in us", "analysis.rows.metrics:queue", '"queue_us") / 1e3', '"queue_us")'),
    Fault(
        "queue time of the server in us",
        "loadgen.fleet.rows:batch",
        "round(1e3 * one.queue_ms)",
        "round(one.queue_ms)",
    ),
    Fault(
        "queue time as text", "loadgen.fleet.sse:_queue_ms", "return float(told)", "return float(told) / 1e3"
    ),
    Fault(
        "tpot counts the first token",
        "analysis.rows.metrics:tpot",
        "after = tokens - 1 - np.where",
        "after = tokens - np.where",
    ),
    Fault(
        "send lag counts the wait of a turn", "analysis.rows.metrics:send_lag", "- blocked_ns(requests))", ")"
    ),
    Fault("burst share by reads alone", "analysis.rows.metrics:burst", "| late_first |", "|"),
    Fault(
        "shared prefix counts its rest",
        "analysis.rows.metrics:prefix_shared",
        "shared - rest_tokens",
        "shared",
    ),
    Fault(
        "requests in flight are on time",
        "analysis.capacity.window_counts:_age_over",
        "np.where(age_ms > limit_ms, age_ms, np.nan)",
        "np.full(len(age_ms), np.nan)",
    ),
    Fault(
        "window counts its end",
        "analysis.capacity.window_counts:in_window",
        "(due < window.window_end_ns)",
        "(due <= window.window_end_ns)",
    ),
    Fault(
        "retracted requests count",
        "analysis.capacity.window_counts:in_window",
        'inside & ~metrics.word_in(requests, "phase", "retracted")',
        "inside",
    ),
    Fault(
        "work of output tokens forgotten",
        "analysis.capacity.window_counts:request_work",
        "prompt + OUTPUT_WORK *",
        "prompt + 0 *",
    ),
    Fault(
        "first record of a request does not count",
        "analysis.rows.shards:joined",
        "return_index=True)[1])",
        "return_index=True)[1][::-1])",
    ),
    Fault(
        "known requests come twice",
        "analysis.rows.shards:joined",
        "first = first[~np.isin(seqs[first], known)]",
        "first = first[seqs[first] >= 0]",
    ),
    Fault("torn end counts as damage", "analysis.rows.records:_is_torn_end", "return True", "return False"),
    # void rules
    Fault(
        "send lag never voids",
        "analysis.capacity.checks:lag_gate_ms",
        "return max(",
        "return 1e9 * max(",
    ),
    Fault("send lag at p90", "analysis.capacity.checks:send_lag_p99", "0.99", "0.90"),
    Fault(
        "unsent requests do not void",
        "analysis.capacity.checks:sent",
        "unsent = np.isinf(lag)",
        "unsent = np.isnan(lag)",
    ),
    Fault(
        "lost actors without their orphans",
        "analysis.capacity.checks:lost_actors",
        "len(it.evidence.lost_actors) + int(orphans.sum())",
        "len(it.evidence.lost_actors)",
    ),
    Fault(
        "late engine steps of all clocks pass",
        "analysis.capacity.checks:engine_late_steps",
        "late / steps",
        "late / steps / 100",
    ),
    Fault(
        "path that is slow for one in ten",
        "analysis.capacity.checks:path_over",
        "float(np.mean(",
        "0.1 * float(np.mean(",
    ),
    Fault(
        "fewer cache hits than planned pass",
        "analysis.capacity.checks:prefix_hit_error",
        "max(hit - most, fewer, 0.0)",
        "max(hit - most, 0.0)",
    ),
    Fault(
        "wrong prompt length passes",
        "analysis.capacity.checks:prompt_tokens_error",
        "- 1) if known",
        "- 1) / 10 if known",
    ),
    Fault(
        "one valid window is enough",
        "analysis.capacity.validity:judge_run",
        "max(LEAST_VALID_WINDOWS, min_windows)",
        "min(LEAST_VALID_WINDOWS, min_windows)",
    ),
    Fault(
        "reason of the last check",
        "analysis.capacity.validity:judge_window",
        "for check in checks if check.voids",
        "for check in reversed(checks) if check.voids",
    ),
    # the service's loss
    Fault(
        "death though tokens came since",
        "loadgen.drive.service_loss:death",
        "or heard_ns(rows) >= due[newest].min()",
        "or False",
    ),
    Fault("silent requests are alive", "loadgen.drive.service_loss:death", "| silent(rows))", ")"),
    Fault(
        "window before a loss is kept",
        "loadgen.drive.service_loss:outlived",
        "(ended_ns > since_ns)",
        "(ended_ns > noticed_ns)",
    ),
    Fault(
        "wait for the service costs budget",
        "loadgen.drive.loss_recovery:LossRecovery.recover",
        "feed.uncharge(lost_ns)",
        "pass",
    ),
    # the load generator
    Fault(
        "late requests are sent in a burst",
        "loadgen.fleet.worker:Worker._launch",
        "late_ns > MISSED_AFTER_NS and",
        "late_ns > 1000 * MISSED_AFTER_NS and",
    ),
    Fault(
        "followers of a closed loop are missed",
        "loadgen.fleet.worker:Worker._launch",
        "and not plan.closed",
        "and True",
    ),
    Fault(
        "retraction forgets what is due", "loadgen.fleet.worker:Worker.retract", "self._send_due()", "pass"
    ),
    Fault(
        "idle connection used however old",
        "loadgen.fleet.http_client:Client._take",
        "if usable and since_ns > oldest",
        "if usable",
    ),
    Fault(
        "no time limit of a request", "loadgen.fleet.http_client:Client._cut_overdue", "< oldest_ns]", "< 0]"
    ),
    Fault(
        "shortage of files blamed on the server",
        "loadgen.fleet.http_client:Client._connect",
        '"missed" if shortage else',
        '"conn_error" if shortage else',
    ),
    Fault(
        "clock of another speed accepted",
        "loadgen.fleet.http_client:Client.check_clock",
        "exchange.time_scale != self._time_scale",
        "exchange.time_scale <= 0",
    ),
    Fault(
        "cut stream is whole",
        "loadgen.fleet.http_connection:Connection.connection_lost",
        "elif error is None and not self._delimited",
        "elif error is None",
    ),
    Fault(
        "error of a stream ignored", "loadgen.fleet.sse:_error_in", 'return message["error"]', "return None"
    ),
    Fault(
        "usage of one token too many",
        "loadgen.fleet.exchange:Exchange.judge",
        "elif self.tokens != self.expected_tokens",
        "elif self.tokens < self.expected_tokens",
    ),
    Fault("event cut by CRLF", "loadgen.fleet.sse:EventReader.feed", '.replace(b"\\r\\n", b"\\n")', ""),
    Fault("gap of reads in ms", "loadgen.fleet.exchange:Exchange.output_at", "// 1000", "// 1000000"),
    Fault("queue of a boolean", "loadgen.fleet.sse:_queue_ms", "isinstance(told, bool) or", ""),
    Fault(
        "clock offset doubled",
        "loadgen.fleet.rows:Clock.run_ns",
        "(monotonic_ns - self.epoch_ns)",
        "(monotonic_ns - 2 * self.epoch_ns)",
    ),
    Fault(
        "wait of a turn on the real clock",
        "loadgen.fleet.rows:batch",
        "plan.free_ns - plan.due_ns",
        "plan.due_ns - plan.free_ns",
    ),
    Fault("turns of a session overtake", "loadgen.fleet.worker:SessionTurns.next_of", "popleft()", "pop()"),
    Fault(
        "shards by time instead of sequence",
        "loadgen.traffic.schedule:ArrivalSchedule.owner",
        "self.seq % n",
        "self.due_ns % n",
    ),
    Fault(
        "seed of arrivals ignored",
        "loadgen.traffic.processes:bench_arrivals_s",
        "np.random.RandomState(seed)",
        "np.random.RandomState(0)",
    ),
    Fault(
        "first gap is a whole one",
        "loadgen.traffic.processes:_first_gap",
        "rng.random() * rng.standard_gamma(arrivals.burstiness + 1)",
        "rng.standard_gamma(arrivals.burstiness)",
    ),
    Fault(
        "lognormal lengths too long",
        "loadgen.traffic.lengths:draw_lengths",
        "math.log(lengths.mean) - sigma**2 / 2",
        "math.log(lengths.mean)",
    ),
    Fault(
        "prompt without its own tokens",
        "loadgen.traffic.lengths:shared_with_all",
        "input_tokens - unique)",
        "input_tokens)",
    ),
    Fault(
        "warm-up takes the first answers",
        "cluster.deployment.warmup:ReplicaWarmup.from_ttfts",
        "ttfts_s[-STEADY:]",
        "ttfts_s[:STEADY]",
    ),
    Fault("warm-up is stable at once", "cluster.deployment.warmup:stable", "len(last) == STEADY and", ""),
    # search
    Fault(
        "required rate passes while answers fall behind",
        "loadgen.search.acceptance:decide",
        "if behind:",
        "if False:",
    ),
    Fault(
        "required rate fails with two windows",
        "loadgen.search.acceptance:decide",
        "len(shares) >= FAIL_WINDOWS and",
        "",
    ),
    Fault(
        "good times not allowed for",
        "analysis.capacity.posterior:level_sd",
        "return LEVEL_SD *",
        "return 0 *",
    ),
    Fault(
        "doubtful ends as near as others",
        "analysis.capacity.posterior:posterior",
        "reach = DOUBT if",
        "reach = 1.0 if",
    ),
    Fault(
        "floor unbounded by quiet windows",
        "analysis.capacity.limit_posterior:fit",
        "belief += np.tile(_floor_evidence(known, limit), len(kernels))",
        "pass",
    ),
    Fault(
        "no rate keeps the bound, unsaid",
        "loadgen.run.verdicts:sweep_verdict",
        "capacity.open_below and limit.slope_unusual",
        "False",
    ),
    Fault(
        "budget of low rates in seconds",
        "loadgen.search.pacing:longer_at",
        "MOST_LONGER",
        "1.0",
    ),
    Fault(
        "next rate without a largest step",
        "loadgen.search.policy:next_rate",
        "if clean else STEP_UP)",
        "if clean else 99)",
    ),
    Fault("missed windows by chance", "loadgen.search.policy:missed_bound", "> MISSED_SHARE", "> 0"),
    # files and secrets
    Fault("no fsync of the folder", "conf.io.durable:replacing", "sync_folder(path.parent)", "pass"),
    Fault("no fsync of the file", "conf.io.durable:replacing", "os.fsync(file.fileno())", "pass"),
    Fault("made folder may be lost", "conf.io.durable:folder", "sync_folder(path.parent)", "pass"),
    Fault("fsync of a folder is not done", "conf.io.durable:sync_folder", "os.fsync(opened)", "pass"),
    Fault("half a file left behind", "conf.io.durable:replacing", "with suppress(OSError):", "if False:"),
    Fault(
        "key in an answer's body",
        "loadgen.fleet.sse:ErrorReader.end",
        "self._redact(_error_text(bytes(self._body)))",
        "_error_text(bytes(self._body))",
    ),
    Fault(
        "key in a header of an answer",
        "loadgen.fleet.http_connection:Connection.on_header",
        'replica = self._client.redact(value.decode(errors="replace"))',
        'replica = value.decode(errors="replace")',
    ),
    Fault(
        "key in events.jsonl",
        "loadgen.run.run_folder:Folder.event",
        "facts = self.cleaned(facts)",
        "facts = dict(facts)",
    ),
    Fault(
        "key in lists",
        "conf.io.secret:Secret.cleaned",
        "isinstance(tree, list | tuple)",
        "isinstance(tree, set)",
    ),
    Fault("percent-encoded key", "conf.io.secret:_forms", "(?:25)*", ""),
    Fault(
        "password in argv",
        "loadgen.run.run_folder:without_credentials",
        'rpartition("@")[2]',
        'rpartition("@")[0]',
    ),
    Fault(
        "redirect is followed",
        "conf.io.http_get:_refuse",
        "response.status in REDIRECTS",
        "response.status > 1000",
    ),
    Fault(
        "endless answer is read", "conf.io.http_get:_Line.readinto", "if self._left_bytes <= 0", "if False"
    ),
    Fault(
        "control characters on the screen",
        "conf.io.one_line:printable",
        "text if text.isprintable() else",
        "text if True else",
    ),
    Fault("alias bomb", "conf.io.bounded_yaml:refuse_large", "nodes + more[0]", "nodes"),
    Fault(
        "links in a run folder",
        "loadgen.run.run_folder:refuse_links",
        "if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode)",
        "if False",
    ),
    Fault(
        "infinity as a number",
        "loadgen.run.run_folder:finite",
        "None if math.isnan(tree) else str(tree)",
        "None",
    ),
    Fault(
        "unreadable shard is deleted",
        "loadgen.run.run_folder:RunFolder.collect",
        "if shard.is_whole:",
        "if True:",
    ),
    Fault(
        "requests of a resumed run twice",
        "loadgen.run.run_folder:RunFolder._write_requests",
        "records.REQUESTS, saved, most_rows",
        "records.REQUESTS, [], most_rows",
    ),
    Fault(
        "reported by two actors",
        "loadgen.drive.load_feed:Ledger._unreported",
        '~np.isin(rows["seq"].to_numpy(),',
        'np.isin(rows["seq"].to_numpy() * 0 - 1,',
    ),
    # planning and results
    Fault("headroom forgotten", "analysis.planning.sizing:size", "served * (1 - headroom)", "served"),
    Fault(
        "spare nodes count as up",
        "analysis.planning.sizing:size",
        "served[1 : most + 1 - spare_nodes]",
        "served[spare_nodes + 1 :]",
    ),
    Fault("fleet rounded down", "analysis.planning.sizing:naive", "math.ceil", "math.floor"),
    Fault(
        "availability of one node too few",
        "analysis.planning.sizing:up_probability",
        "nodes - needed + 1, nodes + 1)",
        "nodes - needed + 2, nodes + 1)",
    ),
    Fault(
        "efficiency rises beyond the last point",
        "analysis.planning.sizing:ScalingEfficiency.at",
        "min(0.0, (y[-1] - y[-2])",
        "max(0.0, (y[-1] - y[-2])",
    ),
    Fault("cost of thousand tokens", "analysis.planning.money:_over", "1e6 / n", "1e3 / n"),
    Fault(
        "nodes of an hour come late",
        "analysis.planning.money:day",
        "by_minute[:lead]]), lead + 1)",
        "by_minute[:lead]]), 1)",
    ),
    Fault(
        "certified rounded up",
        "analysis.stats.estimate:rounded_down",
        "math.floor(",
        "math.ceil(",
    ),
    Fault(
        "open capacity ends with 0",
        "loadgen.run.verdicts:sweep_verdict",
        '_ended(verdict, EXIT_OPEN, "the budget',
        '_ended(verdict, EXIT_OK, "the budget',
    ),
    Fault(
        "void sweep ends with 0",
        "loadgen.run.verdicts:sweep_verdict",
        'EXIT_VOID, f"{whole.reason}',
        'EXIT_OK, f"{whole.reason}',
    ),
    Fault(
        "missed bound ends with 0", "loadgen.run.verdicts:probe_verdict", 'EXIT_SLO_MISSED, f"', 'EXIT_OK, f"'
    ),
    Fault(
        "required rate that fails ends with 0",
        "loadgen.run.verdicts:required_verdict",
        '== "passed" else EXIT_SLO_MISSED',
        '== "passed" else EXIT_OK',
    ),
    Fault("lost target ends as void", "loadgen.run.verdicts:_stopped", "EXIT_TARGET,", "EXIT_VOID,"),
    Fault("metrics in ms", "analysis.live.prometheus_text:_seconds", "MS_PER_S", "1.0"),
    # the engine model
    Fault(
        "KV heads not replicated",
        "serve_apps.engine_model.cost.architecture:kv_bytes_per_token",
        "math.ceil(model.kv_heads / tensor_parallel)",
        "model.kv_heads / tensor_parallel",
    ),
    Fault(
        "KV of fp8 as wide as bf16",
        "serve_apps.engine_model.cost.architecture:kv_bytes_per_token",
        '(1 if model.kv_cache == "fp8" else 2)',
        "2",
    ),
    Fault(
        "KV blocks beside no weights",
        "serve_apps.engine_model.cost.architecture:kv_blocks",
        "usable - weights -",
        "usable -",
    ),
    Fault(
        "routed experts counted per rank",
        "serve_apps.engine_model.cost.architecture:weight_bytes_on_gpu",
        "routed / layout.gpus_per_replica",
        "routed / layout.tensor_parallel",
    ),
    Fault(
        "attention pairs of a chunk",
        "serve_apps.engine_model.cost.step_time:Batch.add_chunk",
        "context + new / 2",
        "context + new",
    ),
    Fault(
        "experts read whole",
        "serve_apps.engine_model.cost.step_time:_expert_miss",
        "model.experts_per_token / model.experts",
        "1",
    ),
    Fault(
        "lost replica still chosen",
        "serve_apps.engine_model.service.balancer:choice",
        "if each != loss.replica",
        "if True",
    ),
    Fault("bound of the ring rounded down", "serve_apps.routing.policies:bound", "math.ceil", "math.floor"),
    Fault(
        "session starts behind its home",
        "serve_apps.routing.policies:starts",
        'side="right")',
        'side="right") + 1',
    ),
    Fault(
        "late steps counted from their end",
        "serve_apps.simulated.realtime_engine:RealtimeEngine._deliver",
        "> duration_s / 2",
        "> duration_s * 20",
    ),
    # recipes, preflight, manifests
    Fault(
        "devices of all replicas shared",
        "serve_apps.vllm_recipes.rules:messages",
        "if eval(rule.when, {**facts})",
        "if eval(rule.when, {**facts}) and False",
    ),
    Fault(
        "refusal without misspelt names",
        "serve_apps.vllm_recipes.rules:refuse",
        "filter(None, [vllm_flags.misspelt(deployment.args, deployment.version)])",
        "[]",
    ),
    Fault(
        "clock within its uncertainty passes",
        "cluster.preflight.judges:clock",
        "offset_ms + spread_ms < CLOCK_MS",
        "offset_ms - spread_ms < CLOCK_MS",
    ),
    Fault(
        "full disk passes",
        "cluster.preflight.judges:disk",
        "100 * seen.host.disk_free",
        "1000 * seen.host.disk_free",
    ),
    Fault(
        "shared memory in GB",
        "cluster.preflight.judges:shared_memory",
        "least_gib * GIB",
        "least_gib",
    ),
    Fault("unknown figure passes", "cluster.preflight.checks:judged", "if figure is None", "if False"),
    Fault(
        "one node differs",
        "cluster.preflight.checks:_equal",
        "if len(distinct) == 1",
        "if len(distinct) <= 2",
    ),
    Fault("GPU of another kind", "cluster.preflight.judges:_is_kind", "arch != expected.arch", "False"),
    Fault(
        "node without GPUs serves",
        "cluster.preflight.checks:InspectedNode.serves",
        "!= LOAD_ROLE and",
        "!= LOAD_ROLE or",
    ),
    Fault(
        "router that spreads sessions passes",
        "cluster.deployment.service_reports:verdict",
        "max(met) > 1",
        "max(met) > 99",
    ),
    Fault(
        "replicas of one node only",
        "conf.specs.experiment:Experiment.replicas",
        "self.cluster.nodes * self.layout.replicas_per_node",
        "self.layout.replicas_per_node",
    ),
    Fault(
        "nodes with too few GPUs",
        "cluster.ray_session.placement:require_nodes",
        "gpus >= cluster.gpus_per_node",
        "gpus > 0",
    ),
    Fault(
        "variable expanded by Kubernetes",
        "cluster.manifests.files:kubernetes_literal",
        'value.replace("$(", "$$(")',
        "value",
    ),
    Fault(
        "host name as an address",
        "cluster.manifests.nodes:host_address",
        "ipaddress.ip_address(text)",
        "str(text)",
    ),
    Fault("path with two dots", "cluster.manifests.nodes:checked_name", 'or ".." in text', ""),
    # quality
    Fault(
        "divergence without its floor",
        "analysis.quality.answers:_bound",
        "min(max(total, 0.0), MOST_NATS)",
        "total / 2",
    ),
    Fault(
        "gate says the same with one end",
        "analysis.quality.gate:GateEnds.same",
        "self.nats.below & self.broken.below &",
        "self.nats.below &",
    ),
    Fault(
        "bold bets at every mean",
        "analysis.quality.confidence_sequence:MeanEnd.feed",
        "BOLDEST / (1 - self._unit_means))",
        "10 * BOLDEST / (1 - self._unit_means))",
    ),
    Fault(
        "bound without its quantile",
        "conf.specs.bounds:allowed_over",
        "1 - quantile_of(limit)",
        "1 - QUANTILE",
    ),
    Fault(
        "quantised group of a channel",
        "conf.checkpoint:_group",
        "max(0, int(str(value)))",
        "abs(int(str(value)))",
    ),
)
