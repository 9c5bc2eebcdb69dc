"""Request routers of Ray Serve."""
