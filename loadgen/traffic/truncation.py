"""How much of an old history a prompt leaves out, in one rule for planned traffic and for rendered templates.

Knows token counts; knows no texts and no users.
"""

import numpy as np

from loadgen.traffic.lengths import Ints


def cut_tokens(history_tokens: Ints | int, room_tokens: Ints | int, step_tokens: int) -> Ints:
    """How many of the oldest tokens of each history go, so that the rest fits into its room.

    As many whole steps as are needed. The cut then stays where it is until the history has grown by a step,
    and with it the beginning of the prompt, which a prefix cache knows (cache-aware truncation, as
    Character.ai's prompt-poet has it); in steps of one token it moves every turn (naive). A step is at most
    three quarters of the room, so that a cut always leaves a part of the history (our choice).
    """
    step = np.maximum(np.minimum(step_tokens, 3 * np.asarray(room_tokens) // 4), 1)
    excess = np.maximum(np.asarray(history_tokens) - room_tokens, 0)
    cut: Ints = -(-excess // step) * step
    return cut
