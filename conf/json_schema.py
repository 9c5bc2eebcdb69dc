"""The JSON schema of a configuration, for editors: the same types and ranges that `conf.typed` checks."""

import json

from conf.specs.bounds import METRICS
from conf.specs.experiment import Experiment
from conf.typed import adapter


def schema_text() -> str:
    """The schema of a whole config.yaml; each group's own is in its `$defs`."""
    schema = adapter(Experiment).json_schema()
    specs = schema["$defs"]
    specs["VllmEngine"]["properties"]["kind"]["enum"].remove("vllm_emulated")  # that of EmulatedEngine
    limit = specs["Slo"]["properties"]["at_most_ms"]["additionalProperties"]
    specs["Slo"]["patternProperties"] = {rf"^({'|'.join(METRICS)})_p\d+_ms$": limit}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(head | schema, indent=1)
