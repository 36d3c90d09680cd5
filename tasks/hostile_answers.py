"""Completions that a model or a stranger may write and that break graders, for tasks/check.py. Pure."""

from collections.abc import Mapping
from typing import Final

MILLION: Final = 1_000_000

HOSTILE: Final[Mapping[str, str]] = {
    "1 MB of one letter": "a" * MILLION,
    "1 MB of blanks": "answer:" + " " * MILLION + "!",
    "1 MB of lines": "1\n" * (MILLION // 2),
    "50,000 open brackets": "(" * 50_000,
    "50,000 nested brackets": "[" * 50_000 + "]" * 50_000,
    "10,000 nested braces": "{" * 10_000 + "}" * 10_000,
    "5,000 digits": "7" * 5_000,
    "a fraction of 5,000 digits": f"{'7' * 5_000}/{'3' * 5_000}",
    "a tower of powers": "9**9**9**9 \\boxed{9^{9^{9^{9}}}}",
    "a factorial": "\\boxed{1000000000!}",
    "unbalanced LaTeX": "\\boxed{\\frac{1}{\\sqrt{2 \\left( x^{3} $$ \\begin{matrix}",
    "300 open fractions": "\\boxed{" + "\\frac{" * 300,
    "a regex bomb of one letter": "a" * 40_000 + "!",
    "a regex bomb of blanks and digits": "1 " * 20_000 + "x",
    "right to left, combining, beyond 16 bits": "\u202e\u0301\U0001d7d9\ufeff\u0000 ١٢٣ ²½ 四十二",
    "no text": "",
    "a line feed": "\n",
    "infinity": "inf",
    "no number": "nan",
    "minus zero": "-0.0",
    "10 to the 400": "1e400",
    "JSON that ends early": '{"answer": [1, 2, {"x":',
    "XML": "<answer><answer></answer>&lt;" * 200,
    "Python": "__import__('os').abort()",
}
"""A name for people -> the completion."""
