"""Ways to write an answer, brought to the one that Math-Verify reads.

Rules
1. Only typography changes, never a value: signs of Unicode become LaTeX, groups of thousands are joined, a sign of
   degrees or of money is dropped.
2. A comma groups thousands only where the whole answer is one number: elsewhere it divides a list.
"""

# ruff: noqa: RUF001  (signs that look like others are what this is about)
import re
import unicodedata
from fractions import Fraction
from typing import Final, NamedTuple

_SIGNS: Final = {
    **dict.fromkeys("−‐‑‒–—﹣－", "-"), **dict.fromkeys("∕／", "/"), **dict.fromkeys("·⋅∙•", r"\cdot "),
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""), "，": ",", "（": "(", "）": ")", "＝": "=", "＋": "+",
    "×": r"\times ", "÷": "/", "∗": "*", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ",
    "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∅": r"\emptyset ", "°": "",
    "π": r"\pi ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "θ": r"\theta ", "λ": r"\lambda ",
    "φ": r"\phi ", "ω": r"\omega ", "ℝ": r"\mathbb{R}",
}  # fmt: skip
_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS: Final = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_DEGREES: Final = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree\b|\\?\b[Dd]egrees?\b)")
_GROUPS: Final = re.compile(r"(?<![\d.,])(\d{1,3})((?:(?:\\,|\\;|\\:|\\!|\\ |~|\{,\}| |,\\!)\d{3})+)(?!\d)")
_WHOLE_GROUPED: Final = re.compile(r"([+-]?\d{1,3})((?:,\s?\d{3})+)(\.\d+)?")
_EXPONENT: Final = re.compile(r"(?<![\w.\\}])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,4})(?![\w.])")
_ROOT_OF_NUMBER: Final = re.compile(r"([√∛])\s*(\d+(?:\.\d+)?|[A-Za-z])")
_MONEY: Final = re.compile(r"^([+-]?)\s*(?:\\\$|\$|€|£|¥|₹)\s*(?=\d)")
_MIXED: Final = re.compile(r"^([+-]?)(\d+) (\d+)/(\d+)$")
_COUNTED: Final = re.compile(r"^([^A-Za-z]*\d[^A-Za-z]*?)\s+([A-Za-z]{2,}(?: [A-Za-z]{2,})*)$")
_NO_UNITS: Final = frozenset(
    {"hundred", "thousand", "million", "billion", "trillion", "dozen", "half", "pi", "and", "or", "to", "plus", "minus"}
    | {"times", "over", "by", "percent", "per"}
)
_OUTER: Final = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_CHOICE: Final = re.compile(
    r"^\(?\s*(?:\\(?:text|textbf|mathrm|mathbf)\{)?\(?([A-J])\)?\}?\s*\)?(?:\s*[.:)]\s*|$)(.*)$"
)
_WORDS: Final = re.compile(r"^[^\W\d_]{2,}(?:[ '-][^\W\d_]+)*$")
MOST_NUMBER_CHARACTERS: Final = 4_000
"""Python refuses integers of more than 4,300 digits."""
_INTEGER: Final = r"\d+"
_DECIMAL: Final = r"\d*\.\d+|\d+\.?"
_NUMBER: Final = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<whole>{_INTEGER})\+)?(?:\\frac\{{(?P<above>[+-]?{_INTEGER})\}}\{{(?P<below>[+-]?{_INTEGER})\}}"
    rf"|(?P<left>{_INTEGER})/(?P<right>{_INTEGER})"
    rf"|(?P<decimal>{_DECIMAL})(?:(?:\\times|\\cdot|\*)10\^\{{?(?P<power>[+-]?\d{{1,3}})\}}?)?)"
)


class PlainNumber(NamedTuple):
    """A number that is written plainly. `digits`: significant digits of a decimal; 0: it is written exactly.
    `unit`: value of a decimal's last place."""

    value: Fraction
    digits: int = 0
    unit: Fraction = Fraction(0)


def plain(text: str) -> str:
    """Return an answer in LaTeX that Math-Verify reads."""
    text = "".join(map(_sign, _write_superscripts(text)))
    text = _write_roots(_write_fractions(text)).strip()
    text = _unwrap(text)
    for long, short in ((r"\dfrac", r"\frac"), (r"\tfrac", r"\frac"), (r"\cfrac", r"\frac"), (r"\displaystyle", "")):
        text = text.replace(long, short)
    text = text.replace(r"\left", "").replace(r"\right", "") if r"\left" in text and r"\right" in text else text
    text = _DEGREES.sub("", text)
    text = _GROUPS.sub(lambda part: part[1] + re.sub(r"\D", "", part[2]), text)
    text = _EXPONENT.sub(lambda part: rf"{part[1]} \times 10^{{{int(part[2])}}}", text)
    text = _MIXED.sub(r"\1(\2+\\frac{\3}{\4})", _MONEY.sub(r"\1", text.strip()))
    whole = _WHOLE_GROUPED.fullmatch(text)
    if whole:
        text = whole[1] + re.sub(r"\D", "", whole[2]) + (whole[3] or "")
    return text.strip()


def choice_of(text: str) -> tuple[str, str]:
    """Return the letter of a choice, as in `(B) 42`, and what stands behind it; without one an empty letter."""
    said = _CHOICE.match(text.strip())
    return (said[1], said[2].strip()) if said else ("", text)


def words_of(text: str) -> str | None:
    """Return an answer that is words, in small letters; None: it is none. A single letter is a variable."""
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|textit)\s*\{([^{}]*)\}", r"\1", text).strip(" .")
    return text.casefold() if _WORDS.match(text) else None


def assignment_of(text: str) -> tuple[str, str]:
    """Return the variable that an answer such as `x = 4` names, and the value behind it; without one an empty name."""
    said = re.fullmatch(r"([A-Za-z]\w*)\s*=\s*([^=]+)", text.strip())
    return (said[1], said[2].strip()) if said else ("", text)


def count_of(text: str) -> str:
    """Return the number of an answer such as `18 dollars`; of any other answer itself. Words that change the number
    are no unit."""
    said = _COUNTED.match(text)
    return said[1] if said and not _NO_UNITS & set(said[2].lower().split()) else text


def number_of(text: str) -> PlainNumber | None:
    """Return the number that a text in the form of `plain` is; None: it is something else, or too long for a number."""
    if len(text) > MOST_NUMBER_CHARACTERS:
        return None
    said = _NUMBER.fullmatch(re.sub(r"\s|\\[,;!]", "", _without_brackets(text)))
    if said is None:
        return None
    sign = -1 if said["sign"] == "-" else 1
    above, below = said["above"] or said["left"], said["below"] or said["right"]
    if above is not None and below is not None:
        if int(below) == 0:
            return None
        return PlainNumber(sign * (int(said["whole"] or 0) + Fraction(int(above), int(below))))
    if said["whole"]:
        return None
    scale = Fraction(10) ** int(said["power"] or 0)
    value = sign * Fraction(said["decimal"].rstrip(".")) * scale
    _, point, places = said["decimal"].rstrip(".").partition(".")
    if not point:
        return PlainNumber(value)
    digits = len(said["decimal"].replace(".", "").lstrip("0"))
    return PlainNumber(value, digits, scale / 10 ** len(places))


def _sign(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    if not character.isascii() and character.isdecimal():
        return str(unicodedata.decimal(character))
    return character


def _write_superscripts(text: str) -> str:
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda run: f"^{{{run[0].translate(_SUPERSCRIPTS)}}}", text)
    return re.sub(r"[₀-₉]+", lambda run: f"_{{{run[0].translate(_SUBSCRIPTS)}}}", text)


def _write_fractions(text: str) -> str:
    """Write vulgar fractions and those with a fraction slash; a whole number before one is a mixed number."""

    def write(part: re.Match[str]) -> str:
        parts = unicodedata.decomposition(part[2]).split()[1:] if part[2] else []
        above, _, below = ("".join(chr(int(one, 16)) for one in parts) if parts else part[3]).partition("\u2044")
        if not above or not below:
            return part[0]
        fraction = rf"\frac{{{above}}}{{{below}}}"
        return f"({part[1].strip()}+{fraction})" if part[1] else fraction

    return re.sub(r"(\d+ ?)?(?:([¼½¾⅐-⅞↉])|(?<!\d)(\d+\u2044\d+))", write, text)


def _write_roots(text: str) -> str:
    def write(sign: str, inside: str) -> str:
        return rf"\sqrt{{{inside}}}" if sign == "√" else rf"\sqrt[3]{{{inside}}}"

    text = _ROOT_OF_NUMBER.sub(lambda part: write(part[1], part[2]), text)
    return re.sub(r"([√∛])\s*[({]([^(){}]*)[)}]", lambda part: write(part[1], part[2]), text)


def _unwrap(text: str) -> str:
    """Remove the signs of formulas around an answer, and the full stop behind it."""
    while True:
        before, text = text, text.strip()
        if len(text) > 1 and text[-1] in ".;," and not text.endswith(("\\;", "\\,")):
            text = text[:-1]
        for begin, end in _OUTER:
            inside = text[len(begin) : len(text) - len(end)]
            if (
                len(text) > len(begin) + len(end)
                and text.startswith(begin)
                and text.endswith(end)
                and end not in inside
            ):
                text = inside
        if text == before:
            return text


def _without_brackets(text: str) -> str:
    """Remove brackets or braces around the whole of a mixed number."""
    text = text.strip()
    return text[1:-1] if len(text) > 2 and (text[0], text[-1]) in (("(", ")"), ("{", "}")) and "," not in text else text
