"""Limits of this process that a session of our own inherits: open files, address space; starts nothing."""

import resource

LEAST_FILES = 1024
"""Ray's own processes fail silently below some hundred (our choice)."""
LEAST_SPACE_GIB = 16
"""Ray's processes map far more than they use, and abort without enough addresses (our choice)."""
MOST_STREAMS = 26_000
"""Most concurrent streams of HAProxy, whose files fit into the 65,536 of a real node (our choice)."""
FILES_OF_A_STREAM, SPARE_FILES = 2.5, 512
"""HAProxy needs two sockets and half a pipe per stream to start; the rest is for listeners and logs."""


def shortage() -> str | None:
    """The limit of this process that is too small for a Ray session, with the remedy; None if none is."""
    hard_files = _hard(resource.RLIMIT_NOFILE)
    if hard_files < LEAST_FILES:
        return (
            f"a process here may open {hard_files} files, and Ray needs {LEAST_FILES} or more; raise the "
            "hard limit (`ulimit -Hn`, or nofile in /etc/security/limits.conf), best to 65536"
        )
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and space < LEAST_SPACE_GIB * 2**30:
        return (
            f"a process here may have {space / 2**30:.1f} GiB of addresses (`ulimit -v`), and Ray reserves "
            "far more than it uses; start again after `ulimit -v unlimited`"
        )
    return None


def front_streams() -> int:
    """Concurrent streams that HAProxy may have here: `MOST_STREAMS`, or as many as it has files for."""
    room = int((_hard(resource.RLIMIT_NOFILE) - SPARE_FILES) / FILES_OF_A_STREAM)
    return min(MOST_STREAMS, max(room, 1))


def _hard(kind: int) -> int:
    """The hard limit, to which every process may raise its own; Ray and HAProxy do."""
    limit = resource.getrlimit(kind)[1]
    return 2**31 if limit == resource.RLIM_INFINITY else limit
