"""Deploys an application, warms it up, reads its state, removes it."""
