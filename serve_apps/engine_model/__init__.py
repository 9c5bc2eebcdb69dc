"""A vLLM replica as arithmetic: its steps and their times; no clock, no asyncio, no Ray."""

from serve_apps.engine_model.engine.engine import Engine, GenerateRequest
from serve_apps.engine_model.engine.kinds import EngineKind, SplitKind
from serve_apps.engine_model.service.service import kind_of

__all__ = [
    "Engine",
    "EngineKind",
    "GenerateRequest",
    "SplitKind",
    "kind_of",
]
