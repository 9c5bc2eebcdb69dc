"""Manifests for KubeRay, ray up and systemd."""
