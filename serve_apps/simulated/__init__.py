"""The simulated engine behind Ray Serve, in OpenAI's API."""
