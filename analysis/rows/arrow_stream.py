"""Reads an Arrow stream as far as it can be read: a kill may have cut it, and a file may be damaged.

A kill leaves a torn end, anything else unreadable is damage.
"""

from pathlib import Path

import pyarrow as pa

MARK = b"\xff\xff\xff\xff"
"""First bytes of every message of an Arrow stream; the size of its head follows."""
MOST_HEAD_BYTES = 2**20
"""Most bytes of the head of one of our batches (our choice)."""


def batches(path: Path) -> tuple[list[pa.RecordBatch], bool]:
    """The batches up to the first that cannot be read, and whether a torn end or nothing follows them.

    The batches are views of the file. Raises OSError if it cannot be opened.
    """
    if not path.stat().st_size:
        return [], True
    with pa.memory_map(str(path)) as file:
        return _read(file)


def _read(file: pa.MemoryMappedFile) -> tuple[list[pa.RecordBatch], bool]:
    found, end = [], 0
    try:
        stream = pa.ipc.open_stream(file)
        end = file.tell()
        for batch in stream:
            batch.validate(full=True)  # offsets that lead out of the file would end the process
            found.append(batch)
            end = file.tell()
    except (pa.ArrowException, OSError, EOFError):
        pass  # what came before is whole
    file.seek(end)
    return found, _is_torn_end(file.read_buffer())


def _is_torn_end(rest: pa.Buffer) -> bool:
    """True for nothing, for zeros (a file that grew unwritten), and for the start of one message."""
    head = rest.slice(0, min(8, rest.size)).to_pybytes()
    if not head.startswith(MARK):
        return MARK.startswith(head) or (not any(head) and not any(rest.to_pybytes()))
    if len(head) < 8:
        return True
    head_bytes = int.from_bytes(head[4:], "little")
    if not 0 < head_bytes <= MOST_HEAD_BYTES or 8 + head_bytes >= rest.size:
        return 0 <= head_bytes <= MOST_HEAD_BYTES
    return bool(8 + head_bytes + _body_bytes(rest.slice(8, head_bytes).to_pybytes()) > rest.size)


def _body_bytes(head: bytes) -> int:
    """Bytes that follow the head of a message: the fourth field of Arrow's flatbuffer `Message`.

    0 where the head is no such thing, so that what follows counts as damage.
    """

    def number(at: int, width: int) -> int:
        return int.from_bytes(head[at : at + width], "little", signed=width > 2)

    root = number(0, 4)
    fields = root - number(root, 4)
    offset = number(fields + 10, 2) if fields >= 0 and number(fields, 2) > 10 else 0
    return max(0, number(root + offset, 8)) if offset else 0
