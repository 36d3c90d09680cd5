"""The names of nodes as page, API and files show them, so that none can pass for another node or for the coordinator.

Rules
1. A name is shown in Unicode's form NFKC, with single spaces. "?" stands for each character that cannot be printed:
   control characters, marks that turn the direction of writing, characters without width. At most
   `MOST_NAME_CHARACTERS` characters are shown, and of the marks on one letter `MOST_MARKS`.
2. Names that look alike have one skeleton: letters without marks, in lower case, with one letter for all that look like
   it (`LOOK_ALIKE`), and nothing but letters and digits.
3. A name is shown together with the end of its peer id where its skeleton is that of a proven node's name, or contains
   a word in `RESERVED_NAMES`. The name is not refused: an owner may give all of his machines one name.
4. Brackets at a name's end are left out of the skeleton that is compared, since rule 3 adds one itself.
"""

import re
import unicodedata
from typing import Final

RESERVED_NAMES: Final = ("coordinator", "operator")
MOST_NAME_CHARACTERS: Final = 40
MOST_MARKS: Final = 2
END_OF_ID: Final = 8
"""Characters of the peer id that are shown with a name, and in place of an empty one."""
LOOK_ALIKE: Final = {
    "2": "1a8 3e9 14bf a645 a6ef a75b",
    "3": "21d 25c 292 437 4e1 2ccd a76b 118ca 16f3b 1d206",
    "4": "13ce 118cf",
    "5": "118db",
    "6": "431 13ee 2cd3",
    "7": "104fa 1d212",
    "8": "223 9ea a6a 1031a 1e8cb",
    "9": "9ed a67 b68 d6d 2ccb a76f 118cc 118d6",
    "a": "251 3b1 430 13aa 15c5 237a a4ee 102a0 16f40",
    "b": "185 3b2 432 44c 13cf 13f4 1472 15af 15f7 a4d0 a7b5 10282 102a1 10301",
    "c": "441 13df 1d04 2ca5 a4da 102a2 10302 1043d 1051c 118e9 118f2 1f74c",
    "d": "501 13a0 13e7 146f 15de 15ea a4d2 a4d3",
    "e": "3b5 435 4bd 13ac 212e 22ff 2d39 a4f0 ab32 10286 118c6 118ce",
    "f": "3dd 584 15b4 1e9d a4dd a799 ab35 10287 102a5 10525 118c2 1d213",
    "g": "18d 261 50d 581 13c0 13f3 1d83 a4d6",
    "h": "3b7 43d 4bb 570 13bb 13c2 157c 2c8f a4e7 102cf",
    "j": "29d 3f3 458 13ab 148d a4d9",
    "k": "3ba 43a 13e6 16d5 2c95 a4d7 10518",
    "l": (
        "131 1c0 269 26a 3b9 456 4cf 5c0 5d5 5df 627 661 6f1 7ca 13a5 13de 14aa 16c1 2223 2373 23fd 2502 2c93 2cd1 "
        "2d4f a4e1 a4f2 a647 1028a 10309 10320 10443 10526 118c3 118d2 16f16 16f28 1d22a 1e8c7"
    ),
    "m": "3bc 3fb 43c 13b7 15f0 16d6 2c99 a4df 102b0 10311",
    "n": "578 57c 2c9b a4e0 10513",
    "o": (
        "3bf 3c3 43e 585 5e1 647 665 6be 6c1 6d5 6f5 7c0 966 9e6 a66 ae6 b20 b66 be6 c66 ce6 d20 d66 e50 ed0 101d "
        "1040 10ff 12d0 1d0f 1d11 2c9f 2d54 3007 a4f3 ab3d 10292 102ab 1042c 104ea 10516 114d0 118c8 118d5 118d7 "
        "118e0"
    ),
    "p": "3c1 440 13e2 146d 2374 2ca3 a4d1 10295",
    "q": "51b 563 566 2d55",
    "r": "280 433 13a1 13b1 13d2 1587 1d26 2c85 a4e3 ab47 ab48 104dc 16f35 1d216",
    "s": "1bd 455 57f 13d5 13da a4e2 a731 10296 10448 118c1 16f3a",
    "t": "3c4 442 13a2 22a4 27d9 2ca7 a4d4 10297 102b1 10315 16f0a 1f768",
    "u": "28b 57d 1200 144c 1d1c 222a 22c3 a4f4 a79f ab4e ab52 104f6 118d8 16f42",
    "v": "3bd 475 5d8 667 6f7 13d9 142f 1d20 2228 22c1 2d38 a4e6 a6df 1051d 11706 118c0 16f08 1d20d",
    "w": "26f 461 51d 561 13b3 13d4 1d21 a4ea 1170a 1170e 1170f 118e6 118ef",
    "x": (
        "d7 3c7 445 1541 157d 166d 166e 16b7 2573 292b 292c 2a2f 2cad 2d5d a4eb ab53 10290 102b4 10317 10322 10527 "
        "118ec"
    ),
    "y": "263 28f 3b3 3c5 443 4af 10e7 13a9 13bd 1d8c 1eff 2ca9 a4ec ab5a 102b2 118dc 16f43",
    "z": "3b6 13c3 1d22 a4dc 102f5 118c4 118c9 118e5",
}
"""Letter or digit -> code points in hexadecimal that look like it: the single characters to which Unicode's
confusables.txt (UTS 39) gives one prototype with that letter, after compatibility decomposition and case folding. Where
two letters share a character, the one with more matches has it."""
_SAME_LETTERS: Final = str.maketrans(
    {chr(int(code, 16)): letter for letter, codes in LOOK_ALIKE.items() for code in codes.split()}
    | {"i": "l", "1": "l", "|": "l", "0": "o"}
)
_PAIRS: Final = (("rn", "m"), ("vv", "w"), ("cl", "d"))
_WITHOUT_WIDTH: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u3164\uffa0")
_VARIATIONS: Final = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
_BRACKET: Final = re.compile(r"\s*\([^)]*\)?\s*$")


def display_name(name: str) -> str:
    """Return a name as it is shown (rule 1)."""
    letters, marks = [], 0
    for letter in unicodedata.normalize("NFKC", name):
        marks = marks + 1 if unicodedata.combining(letter) else 0
        if marks <= MOST_MARKS:
            letters.append(letter if _is_visible(letter) else "?")
    return " ".join("".join(letters).split())[:MOST_NAME_CHARACTERS].rstrip()


def _is_visible(letter: str) -> bool:
    return (
        (letter.isprintable() or letter == " ")
        and letter not in _WITHOUT_WIDTH
        and not any(ord(letter) in variations for variations in _VARIATIONS)
    )


def skeleton(name: str) -> str:
    """Return the skeleton of a name that is shown (rules 2 and 4); for one without letters and digits the name."""
    before, without = "", name
    while without != before:
        before, without = without, _BRACKET.sub("", without)
    whole = _letters(without) or _letters(name)
    return whole or name


def _letters(name: str) -> str:
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
    same = plain.casefold().translate(_SAME_LETTERS)
    for pair, letter in _PAIRS:
        same = same.replace(pair, letter)
    return "".join(letter for letter in same if letter.isalnum())


def is_reserved(name: str) -> bool:
    """Tell whether a name that is shown contains a word that only the run may use."""
    letters = _letters(name)
    return any(_letters(word) in letters for word in RESERVED_NAMES)


def qualify_name(name: str, peer: str) -> str:
    """Return a name with the end of its peer id (rule 3)."""
    end = f"({peer[-END_OF_ID:]})"
    return name if name.endswith(end) else f"{name} {end}".strip()
