"""Truncation of old history: one rule for planned traffic and for rendered templates."""

import numpy as np

from loadgen.traffic.lengths import Ints


def cut_tokens(history_tokens: Ints | int, room_tokens: Ints | int, step_tokens: int) -> Ints:
    """The number of oldest tokens to remove from each history so that the rest fits into its room.

    It is a whole number of steps, so the cut stays until the history has grown by a step, and with it the
    beginning of the prompt, which a prefix cache knows (as in Character.ai's prompt-poet); steps of one token
    are naive. A step is at most three quarters of the room, so that part of the history stays (our choice).
    """
    step = np.maximum(np.minimum(step_tokens, 3 * np.asarray(room_tokens) // 4), 1)
    excess = np.maximum(np.asarray(history_tokens) - room_tokens, 0)
    cut: Ints = -(-excess // step) * step
    return cut
