"""Words from servers, such as a replica's name, bounded in number and length so that a column holds them."""

from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from conf.io.one_line import one_line

OTHER = "(other)"
"""Stands for every word that came after the first `MOST`."""
MOST = 4096
"""Different words of a column: more than a fleet has replicas, far less than 16 bits hold (our choice)."""
LETTERS = 120
"""Letters of a word that are kept (our choice); Ray's replica names have some twenty."""

KIND = pa.dictionary(pa.int16(), pa.string())
"""Arrow type of such a column."""
READ_AS = pa.dictionary(pa.int32(), pa.string())
"""Arrow type that also takes what another program wrote without a bound."""


class BoundedWords:
    """The words of one column as they come in, each with the one that stands for it."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def kept(self, word: str | None) -> str | None:
        """The word on one line; `OTHER` once `MOST` different ones are known."""
        if word is None:
            return None
        start = word[: 4 * LETTERS]
        if start not in self._kept:
            if len(self._kept) >= MOST:
                return OTHER
            self._kept[start] = one_line(start, LETTERS)
        return self._kept[start]


def folded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, of strings or a dictionary of them, as `KIND`; words beyond the first `MOST` are `OTHER`.

    Raises ArrowInvalid for words that are no text.
    """
    chunks = [
        chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode() for chunk in column.chunks
    ]
    every = dict.fromkeys(word for chunk in chunks for word in _texts(chunk.dictionary) if word is not None)
    known = set(islice(every, MOST))
    return pa.chunked_array([_narrow(chunk, known) for chunk in chunks], KIND)


def _texts(words: pa.Array) -> list[str | None]:
    try:
        texts: list[str | None] = words.cast(pa.string()).to_pylist()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"a word is no text: {error.reason}") from error
    return texts


def _narrow(chunk: pa.DictionaryArray, known: set[str]) -> pa.DictionaryArray:
    texts = _texts(chunk.dictionary)
    if len(texts) <= MOST and known.issuperset(word for word in texts if word is not None):
        return pa.DictionaryArray.from_arrays(
            chunk.indices.cast(pa.int16()), chunk.dictionary.cast(pa.string())
        )
    kept = [word if word is None or word in known else OTHER for word in texts]
    encoded = pc.take(pa.array(kept, pa.string()), chunk.indices).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(pa.int16()), encoded.dictionary)
