"""A vLLM replica as arithmetic: its steps and their times; no clock, no asyncio, no Ray."""

from serve_apps.engine_model.engine.engine import Engine, GenerateRequest
from serve_apps.engine_model.engine.kinds import EngineKind

__all__ = ["Engine", "EngineKind", "GenerateRequest"]
