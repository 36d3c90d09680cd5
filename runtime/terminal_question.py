"""Questions to the person at the terminal."""

import typer

from echo2.runtime.errors import LocalFault


def ask_agreement(question: str, *, default: bool) -> bool:
    """Ask the person at the terminal, and return the answer. Raises `LocalFault` where the input ends without one, and
    `KeyboardInterrupt`."""
    try:
        return typer.confirm(question, default=default)
    except typer.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            print()
            unanswered = f"the input ended without an answer to {question!r}: answer y or n, or add --yes"
            raise LocalFault(unanswered) from None
        raise KeyboardInterrupt from None
