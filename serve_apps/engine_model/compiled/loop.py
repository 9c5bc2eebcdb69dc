"""The scheduling rules once more, as a loop over columns at O(1) per step; knows no objects, draws no noise.

One source for two machines: numba compiles it where it is installed, else it runs as it stands, over lists.
It serves where nothing can be preempted: prompts share one prefix or nothing, every decoder gets its token
in every step (max_num_seqs <= max_num_batched_tokens), and the KV cache holds whatever may run at once.
`test_fast_engine` holds it to the times of `Scheduler`. Where prompts share more than one prefix, what each
finds in the cache is counted when it arrives (`prefix_reuse`), and a prompt waits while it does not fit whole
beside those that run.

Decoders are a count and a sum of contexts. Who gets a first token in step s emits the last one in step
s + output - 1, which is known then: a ring of buckets, one per step, says who leaves when.
"""

import math
from typing import Any

from serve_apps.engine_model.compiled.native import native
from serve_apps.engine_model.cost.noise import drifted
from serve_apps.engine_model.cost.step_time import step_s
from serve_apps.engine_model.scheduler.engine import IDLE_POLL_S

# Places in `ints`: requests added, the next to admit, the one prefilled in part (-1: none), how far ...
TAIL, HEAD, PART, PART_DONE, RUNNING, DECODERS, CONTEXT, STEP, ENDED, RESERVED, WARM, OPEN, DRAWN = range(13)
# ... the step scheduled but not begun, and the one that runs: if there is one, and whose prompts end ...
AHEAD, AHEAD_LOW, AHEAD_HIGH, FLYING, FLYING_LOW, FLYING_HIGH, LOOKED = range(13, 20)
# ... and the tokens of all steps so far.
DECODED, PREFILLED, READ, EMITTED, BORROWED, INTS = range(20, 26)
# Places in `floats`.
NOW, AHEAD_S, FLYING_END, DRIFT, DRIFTED_AT, FRONT_FREE, BUSY, PAIRS, HELD, FLOATS = range(10)

BESIDE = 15
"""Where the costs of what is beside a step's arithmetic begin: those of `Roofline` are before."""
REACHED, OUT_OF_NOISE, OUT_OF_KV, OUT_OF_ROOM = range(4)
"""Why a loop returned: `until` is reached; more noise is due; the cache, or a column, may overflow."""

_step_s, _drifted = native(step_s), native(drifted)


@native
def advance(
    until: Any, limits: Any, costs: Any, ints: Any, floats: Any, requests: Any, ring: Any, noise: Any
) -> int:
    """Run one engine to `until`: every step that ends by then has ended, and none has begun at that instant.

    `requests` are columns by number in order of arrival (ready, prompt, output, shared, sent, cached, born,
    first, last, link); `ring` columns by step modulo their length (who leaves, how many, their context), and
    one for the ends of as many steps as it has room for; `limits` and `costs` are those of `fast.Machine`.
    What is scheduled will happen, for nobody is preempted: the state of the decoders is that of the next step
    to schedule. With `counted`, `shared` are the tokens
    that were found in the cache, and each request holds blocks for all of its own.
    """
    max_tokens, max_seqs, block, blocks, lookahead, closed, counted = limits
    front_end, latency, drift_sd, memory, noisy = costs[BESIDE:]
    ready, prompt, output, shared, sent, cached, born, first, last, link = requests
    leavers, leaving, leaving_context, ends = ring
    factors, stalls, gauss = noise
    size = len(leavers)
    tail, head, part, done = ints[TAIL], ints[HEAD], ints[PART], ints[PART_DONE]
    running, decoders, context, step = ints[RUNNING], ints[DECODERS], ints[CONTEXT], ints[STEP]
    ended, reserved, warm, drawn = ints[ENDED], ints[RESERVED], ints[WARM], ints[DRAWN]
    ahead, ahead_low, ahead_high = ints[AHEAD], ints[AHEAD_LOW], ints[AHEAD_HIGH]
    flying, flying_low, flying_high, looked = ints[FLYING], ints[FLYING_LOW], ints[FLYING_HIGH], ints[LOOKED]
    decoded, prefilled, all_read, emitted = ints[DECODED], ints[PREFILLED], ints[READ], ints[EMITTED]
    now, ahead_s, flying_end = floats[NOW], floats[AHEAD_S], floats[FLYING_END]
    drift, drifted_at, front_free = floats[DRIFT], floats[DRIFTED_AT], floats[FRONT_FREE]
    busy, all_pairs, held = floats[BUSY], floats[PAIRS], floats[HELD]
    still_open, borrowed = ints[OPEN], ints[BORROWED]
    status = REACHED
    while True:
        if flying and looked:  # end the step that runs
            if flying_end > until:
                break
            now, flying = flying_end, 0
            if ended < len(ends):
                ends[ended] = now
            for i in range(flying_low, flying_high):
                first[i] = now
            at = ended % size
            i = leavers[at]
            while i >= 0:
                last[i] = now
                running -= 1
                still_open -= 1
                reserved -= (prompt[i] + output[i] + block - 1) // block
                if not counted:
                    reserved += cached[i] // block
                    borrowed -= cached[i]
                if tail < closed:  # in a closed loop whoever leaves makes room for the next
                    sent[tail] = now
                    front_free = max(now, front_free) + front_end
                    ready[tail] = front_free + latency
                    tail += 1
                    still_open += 1
                i = link[i]
            leavers[at] = -1
            leaving[at] = leaving_context[at] = 0
            ended += 1
            if lookahead and not ahead:
                now += IDLE_POLL_S
            continue
        if ahead and not flying:  # begin the step scheduled last
            if now >= until:
                break
            took = ahead_s
            if noisy:
                if drawn == len(factors):
                    status = OUT_OF_NOISE
                    break
                if drift_sd > 0:
                    drift = _drifted(drift, now - drifted_at, drift_sd, memory, gauss[drawn])
                    drifted_at = now
                took = took * factors[drawn] * math.exp(drift) + stalls[drawn]
                drawn += 1
            flying_end = now + took
            busy += took
            own = context - borrowed + (done if part >= 0 else 0)
            held += took * (own + warm * block if borrowed else own)
            flying, flying_low, flying_high = 1, ahead_low, ahead_high
            ahead, looked = 0, 1 - lookahead
            continue
        if flying:  # asynchronous scheduling: the next step is chosen as this one begins
            looked = 1
        elif decoders == 0 and part < 0:
            if head == tail:
                break
            start = max(now, ready[head])
            if start >= until:
                break
            now = start
        elif now >= until:
            break
        chosen, read_context, pairs = decoders, context, 0.0
        left = max_tokens - decoders
        context += decoders
        at = step % size
        low = high = head if part < 0 else part
        decoders -= leaving[at]
        context -= leaving_context[at]
        while left > 0:
            if part < 0:
                if not (head < tail and running < max_seqs and ready[head] <= now):
                    break
                needed = (prompt[head] + output[head] + block - 1) // block
                if counted and reserved + needed > blocks:
                    break
                part = head
                reserved += needed
                if counted:
                    done = shared[part]
                else:
                    done = min(min(shared[part] // block, warm), (prompt[part] - 1) // block) * block
                    warm = max(warm, shared[part] // block)
                    reserved -= done // block
                    borrowed += done
                    if reserved + warm > blocks:
                        status = OUT_OF_KV
                        break
                cached[part] = done
                running += 1
                head += 1
            new = min(prompt[part] - done, left)
            read_context += done
            pairs += new * (done + new / 2)
            done += new
            left -= new
            if done == prompt[part]:
                born[part] = step
                leave = (step + output[part] - 1) % size
                link[part] = leavers[leave]
                leavers[leave] = part
                if output[part] > 1:
                    decoders += 1
                    context += prompt[part]
                    leaving[leave] += 1
                    leaving_context[leave] += prompt[part] + output[part] - 1
                part = -1
                high += 1
        if status == OUT_OF_KV:
            break
        new = max_tokens - chosen - left
        if chosen + new == 0:
            continue
        sequences = chosen + high - low
        ahead_s = _step_s(costs[:BESIDE], chosen, new, read_context, pairs, sequences)
        ahead, ahead_low, ahead_high = 1, low, high
        step += 1
        decoded += chosen
        prefilled += new
        all_read += read_context
        emitted += sequences
        all_pairs += pairs
    ints[TAIL], ints[HEAD], ints[PART], ints[PART_DONE] = tail, head, part, done
    ints[RUNNING], ints[DECODERS], ints[CONTEXT], ints[STEP] = running, decoders, context, step
    ints[ENDED], ints[RESERVED], ints[WARM], ints[DRAWN] = ended, reserved, warm, drawn
    ints[AHEAD], ints[AHEAD_LOW], ints[AHEAD_HIGH] = ahead, ahead_low, ahead_high
    ints[FLYING], ints[FLYING_LOW], ints[FLYING_HIGH], ints[LOOKED] = flying, flying_low, flying_high, looked
    ints[DECODED], ints[PREFILLED], ints[READ], ints[EMITTED] = decoded, prefilled, all_read, emitted
    ints[OPEN], ints[BORROWED] = still_open, borrowed
    floats[NOW], floats[AHEAD_S], floats[FLYING_END] = now, ahead_s, flying_end
    floats[DRIFT], floats[DRIFTED_AT], floats[FRONT_FREE] = drift, drifted_at, front_free
    floats[BUSY], floats[PAIRS], floats[HELD] = busy, all_pairs, held
    return status
