"""A vLLM replica as arithmetic: its steps and their times; no clock, no asyncio, no Ray."""

from serve_apps.engine_model.engine.engine import Engine, GenerateRequest
from serve_apps.engine_model.engine.kinds import EngineKind, SplitKind
from serve_apps.engine_model.service.service import kind_of
from serve_apps.engine_model.service.virtual_service import RequestProgress, SessionPrompt, VirtualService

__all__ = [
    "Engine",
    "EngineKind",
    "GenerateRequest",
    "RequestProgress",
    "SessionPrompt",
    "SplitKind",
    "VirtualService",
    "kind_of",
]
