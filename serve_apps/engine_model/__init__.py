"""The engine as arithmetic: what a vLLM replica would do and when; no clock, no asyncio, no Ray."""

from serve_apps.engine_model.scheduler.engine import Engine, GenerateRequest, Step, TokenEvent
from serve_apps.engine_model.service.virtual_service import Progress, VirtualService

__all__ = ["Engine", "GenerateRequest", "Progress", "Step", "TokenEvent", "VirtualService"]
