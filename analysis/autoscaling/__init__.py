"""Engines that come and go with their load: Ray Serve's settings, and what a day of such fleets is like."""
