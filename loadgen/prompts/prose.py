"""Endless English-like text from a small grammar: sentences, and lines of a dialogue.

The text is plain ASCII, so that no tokenizer can cut a letter in two.
"""

import re
from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np

WORDS = {
    "name": "Ada Ben Clara David Edith Frank Grace Henry Iris Jonas Kate Leo Maria Noah Olga Paul Quinn "
    "Rosa Simon Tara Ursula Victor Wanda Yusuf",
    "noun": "answer apple boat book boy bridge candle captain castle chair clock cloud coat cook corner "
    "doctor door dream engine farmer field fire fish forest friend garden gate ghost girl guard horse "
    "house island key king lake lamp letter light machine map market mirror moon morning mountain "
    "neighbour night ocean painter paper path piano picture pilot poem prince promise question rain raven "
    "river road room sailor secret shadow ship shop singer sister snow soldier song star stone storm "
    "story stranger street summer table teacher tower town train tree valley village voice wall watch "
    "wave window winter witch wizard wolf",
    "adjective": "ancient bitter blue bright broken brave busy calm careful cheap clean clever cold "
    "common curious dark deep distant dry empty famous fast first foreign free gentle golden good great "
    "green grey happy heavy hidden hollow honest hungry large last late lazy little lonely long lost loud "
    "lucky narrow new noisy old open ordinary pale patient plain poor quiet rare red rich round sad "
    "secret sharp short silent silver simple sleepy slow small soft strange strong sudden sweet tall "
    "tired warm white wild wise",
    "did": "admired asked avoided believed bought broke brought built called carried caught chased closed "
    "copied counted crossed described drew feared followed forgot found gave guarded heard helped hid "
    "kept kissed knew left liked lost loved made measured mended met missed needed noticed opened ordered "
    "painted passed praised promised pulled pushed reached read refused remembered repaired sold sang saw "
    "shared showed spent stole studied taught thanked took touched trusted visited wanted warned washed "
    "watched wrote",
    "rested": "answered argued arrived breathed called coughed cried danced disappeared dreamed fell "
    "hesitated hurried laughed listened nodded paused prayed rested returned sang sat shivered sighed "
    "slept smiled stood stopped stumbled talked trembled turned vanished waited wandered wept whispered "
    "wondered worked",
    "how": "again|alone|at last|badly|carefully|early|for hours|gently|gladly|happily|in silence|in vain|"
    "kindly|loudly|once more|politely|proudly|quickly|quietly|sadly|slowly|softly|suddenly|too late|twice|"
    "well",
    "where": "above behind below beside beyond inside near opposite outside past towards under",
    "when": "after supper|before the war|by noon|during the storm|every evening|in the end|last night|"
    "long ago|next week|on Monday|on Sunday|one morning|that winter|the day after|this year|"
    "two days later|yesterday",
    "things": "apples birds boats books candles chairs doors flowers gardens ghosts horses lamps letters "
    "mirrors pictures poems promises rooms ships songs stones stories strangers towers trees wolves",
    "number": "two|three|four|five|six|seven|a dozen|twenty|forty|ninety|a hundred|a thousand|1200|7|15|36",
    "cry": "Certainly|Good heavens|I am sure|I beg your pardon|If you ask me|Listen|My dear|No|Not today|"
    "Oh|Of course|Perhaps|Please|To be honest|Well|What a pity|Yes|You know",
}
"""Choices by the name of a field: words, or groups of words separated by bars."""
PATTERNS = (
    "The {adjective} {noun} {did} the {noun} {where} the {noun}.",
    "{name} {did} a {adjective} {noun} {when}.",
    "{when}, {name} {rested} {how}, and the {noun} {rested} too.",
    "Was the {noun} as {adjective} as {name} said?",
    '"{cry}," said {name}, "the {noun} is {adjective} and the {noun} is not."',
    "There were {number} {things} {where} the {adjective} {noun}, but {name} {did} only one.",
    "If the {noun} is {adjective}, {name} will come back; if not, nobody will.",
    "{name} and {name} {rested} {how} {where} the {noun}, where a {adjective} {noun} {rested}.",
    "It was {adjective}, {adjective} and rather {adjective}, like every {noun} that {name} {did}.",
    "Who {did} my {noun} {when}?",
    "{cry}! The {noun} {rested} {how}.",
    "Neither {name} nor the {noun} {did} what the {adjective} {noun} had told them {when}.",
)
FIELD = re.compile(r"{(\w+)}")
CHOICES = {name: words.split("|" if "|" in words else None) for name, words in WORDS.items()}
DRAWN = 4096
"""Random numbers per draw."""
LETTERS_PER_TOKEN = 4.5
"""Letters per English token with today's tokenizers; only the length of dialogue lines uses it."""


def sentences(seed: int) -> Iterator[str]:
    """Endless sentences, each after a space; `seed` decides them all."""
    drawn = _numbers(seed)

    def choice(field: re.Match[str]) -> str:
        choices = CHOICES[field[1]]
        return choices[next(drawn) % len(choices)]

    while True:
        written = FIELD.sub(choice, PATTERNS[next(drawn) % len(PATTERNS)])
        yield f" {written[0].upper()}{written[1:]}"


def talk(seed: int, mean_tokens: tuple[int, int], line: Callable[[str, str], str]) -> Iterator[str]:
    """Endless lines of a user and a character in turn, about `mean_tokens` long; `line` formats author and
    text.
    """
    text = sentences(seed)
    for author, tokens in cycle(zip(("User", "Character"), mean_tokens, strict=True)):
        said = next(text)
        while len(said) < LETTERS_PER_TOKEN * tokens:
            said += next(text)
        yield line(author, said.strip())


def _numbers(seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.integers(0, 2**31, size=DRAWN).tolist()
