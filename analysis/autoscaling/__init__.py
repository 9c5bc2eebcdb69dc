"""Engines that come and go with their load: Ray Serve's settings for a plan."""
