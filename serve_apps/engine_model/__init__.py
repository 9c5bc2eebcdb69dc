"""A vLLM replica as arithmetic: its steps and their times; no clock, no asyncio, no Ray."""

from serve_apps.engine_model.scheduler.engine import BlockEngine, GenerateRequest
from serve_apps.engine_model.service.virtual_service import RequestProgress, VirtualService

__all__ = ["BlockEngine", "GenerateRequest", "RequestProgress", "VirtualService"]
