"""Arguments, values, compilation keys and variables by the versions of vLLM that know them.

Only names of published deployments, guides and recipes are listed: vLLM's own parser judges the rest. Source:
vLLM 0.9.2 to 0.33.0; the rejections of 0.29.0 and 0.32.0 are run through their parsers
(tests/vllm/test_recipes.py).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Version = tuple[int, int, int]

OLDEST: Version = (0, 9, 2)
NEWEST: Version = (0, 33, 0)
"""The versions that were read. Others are served with a note."""


@dataclass(frozen=True, slots=True)
class Known:
    """A name that versions `first` to `last` know, both included; None is an end that was not read."""

    name: str
    remedy: str
    first: Version | None = None
    last: Version | None = None

    def known_to(self, version: Version) -> bool:
        return (self.first is None or version >= self.first) and (self.last is None or version <= self.last)

    def unknown(self, version: Version) -> str:
        """Sentence that `version` does not know it, with the last or first version that does."""
        if self.last is not None and version > self.last:
            return f"vLLM {text(version)} does not know it (last in {text(self.last)})"
        assert self.first is not None
        return f"vLLM {text(version)} does not know it yet (first in {text(self.first)})"


ARGUMENTS = (
    Known("disable_log_requests", "leave it out: off is the default", last=(0, 16, 0)),
    Known("swap_space", "leave it out", last=(0, 17, 0)),
    Known(
        "num_scheduler_steps",
        "leave it out: async scheduling took its place and is on by default in 0.33",
        last=(0, 9, 2),
    ),
    Known("max_num_partial_prefills", "leave it out", last=(0, 24, 0)),
    Known("attention_backend", "choose engine.env.VLLM_ATTENTION_BACKEND instead", first=(0, 13, 0)),
    Known("kv_offloading_backend", "set it to null", first=(0, 11, 2)),
    Known("kv_offloading_size", "set it to null", first=(0, 11, 2)),
    Known("allow_deprecated_quantization", "leave it out: nothing is deprecated there", first=(0, 14, 0)),
)
"""Flags that only some versions take. Source: vLLM's sources from 0.9.2 to 0.33.0.

attention_backend: vLLM PR #26315, whose warnings name 0.13; allow_deprecated_quantization: PR #31688, first
in 0.14.0.
"""

VALUES = {
    ("quantization", "ptpc_fp8"): Known(
        "quantization=ptpc_fp8", "use quantization=fp8_per_channel", last=(0, 14, 1)
    ),
}
"""Values of arguments. Gone somewhere between 0.14.1 and 0.29.0, where fp8_per_channel is listed instead."""


@dataclass(frozen=True, slots=True)
class CompilationKey:
    """A key of compilation_config that did something up to `honoured` and is rejected from `rejected` on.

    In between it is ignored; `honoured` is None where it never did anything.
    """

    name: str
    remedy: str
    rejected: Version
    honoured: Version | None


COMPILATION_KEYS = (
    CompilationKey(
        "full_cuda_graph", 'use {"cudagraph_mode": "PIECEWISE"}', rejected=(0, 13, 0), honoured=(0, 11, 0)
    ),
    CompilationKey(
        "max_capture_size",
        "use max_cudagraph_capture_size, in tokens of a step (default at most 512), not a sequence's length",
        rejected=(0, 13, 0),
        honoured=None,
    ),
)
"""Source: vLLM 0.11.0 (`init=False` there) and 0.13.0, where unknown keys became an error."""

VARIABLES = (
    Known("VLLM_USE_V1", "leave it out: V1 is the only engine", last=(0, 11, 0)),
    Known("VLLM_USE_TRITON_FLASH_ATTN", "choose attention_backend", last=(0, 11, 0)),
    Known("VLLM_ROCM_USE_AITER_PAGED_ATTN", "leave it out", last=(0, 24, 0)),
    Known("VLLM_ROCM_CUSTOM_PAGED_ATTN", "leave it out", last=(0, 18, 0)),
    Known("VLLM_V1_USE_PREFILL_DECODE_ATTENTION", "use attention_backend=ROCM_ATTN", last=(0, 14, 1)),
    Known("VLLM_ATTENTION_BACKEND", "use attention_backend", last=(0, 14, 1)),
    Known("VLLM_ALL2ALL_BACKEND", "use all2all_backend", last=(0, 15, 0)),
    Known("VLLM_RPC_TIMEOUT", "leave it out", last=(0, 20, 0)),
    Known(
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND",
        "leave it out: 0.33 has no other Ray executor",
        first=(0, 20, 0),
        last=(0, 32, 0),
    ),
    Known("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "leave it out", first=(0, 15, 0)),
    Known("VLLM_ROCM_USE_AITER_CUSTOM_AR", "leave it out", first=(0, 28, 0)),
)
"""Environment variables, which vLLM ignores where it does not know them. Source: its envs.py from 0.9.2 to
0.33.0."""

NEVER_READ = {"SAFETENSORS_FAST_GPU": "does nothing since safetensors 0.3.0"}
"""Variables that no version of vLLM reads and nothing else does any more."""


def parse(version: str) -> Version:
    """0.14.1 of "0.14.1+rocm641" or "0.14.1rc2"; 0.33.0 of "0.33". Raises ValueError for anything else."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version.strip())
    if not found:
        raise ValueError(f"vllm_version={version} is not a version; write it as {text(NEWEST)}")
    return int(found[1]), int(found[2]), int(found[3] or 0)


def text(version: Version) -> str:
    return ".".join(map(str, version))


def argument_name(word: str) -> str:
    """vLLM's Python name of an argument that may be written as its flag."""
    return word.strip().lstrip("-").replace("-", "_")


def knows(argument: str, version: Version) -> bool:
    """True if a vLLM of this version takes an argument, as far as that is known here."""
    return all(known.known_to(version) for known in ARGUMENTS if known.name == argument)


def rejected(args: Mapping[str, Any], version: Version) -> list[str]:
    """Sentences with a remedy about what keeps a vLLM of this version from starting."""
    listed = [known for known in ARGUMENTS if known.name in args]
    listed += [known for (name, value), known in VALUES.items() if args.get(name) == value]
    found = [
        f"engine.args.{known.name}: {known.unknown(version)}; {known.remedy}"
        for known in listed
        if not known.known_to(version)
    ]
    given = compilation(args)
    return found + [
        f"compilation_config.{key.name}: vLLM {text(version)} rejects it, as do all from "
        f"{text(key.rejected)} on; {key.remedy}"
        for key in COMPILATION_KEYS
        if key.name in given and version >= key.rejected
    ]


def ignored(args: Mapping[str, Any], env: Mapping[str, str], version: Version) -> list[str]:
    """Sentences with a remedy about what has no effect on a vLLM of this version."""
    given = compilation(args)
    found = [
        f"compilation_config.{key.name} has no effect in vLLM {text(version)}; {key.remedy}"
        for key in COMPILATION_KEYS
        if key.name in given and version < key.rejected and (key.honoured is None or version > key.honoured)
    ]
    found += [
        f"{known.name} is ignored: {known.unknown(version)}; {known.remedy}"
        for known in VARIABLES
        if known.name in env and not known.known_to(version)
    ]
    return found + [f"{name} {why}; leave it out" for name, why in NEVER_READ.items() if name in env]


def unknown_variables(env: Mapping[str, str], version: Version) -> list[str]:
    """Names that a vLLM of this version does not know although they look like its own."""
    return [known.name for known in VARIABLES if known.name in env and not known.known_to(version)]


def compilation(args: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of compilation_config, also where it is written as JSON; none of a bare level."""
    return mapping("compilation_config", args.get("compilation_config"))


def mapping(name: str, given: Any) -> dict[str, Any]:
    """The keys of the argument `name`, also where it is written as JSON; none of what is no mapping."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"engine.args.{name}={given} is not JSON; write a mapping") from error
    return dict(given) if isinstance(given, Mapping) else {}
