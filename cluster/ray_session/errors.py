"""The error of every session and cluster; imports no Ray."""


class SessionError(Exception):
    """No usable session or cluster; the message is one line with the remedy."""
