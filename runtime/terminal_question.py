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
            raise _no_answer(question, "answer y or n, or add --yes") from None
        raise KeyboardInterrupt from None


def ask_text(question: str, option: str) -> str:
    """Return the line that the person types. `option`: option of the command that answers instead. Raises `LocalFault`
    where the input ends without one."""
    try:
        return input(question)
    except EOFError:
        print()
        raise _no_answer(question, f"type it, or add {option}") from None


def _no_answer(question: str, remedy: str) -> LocalFault:
    return LocalFault(f"the input ended without an answer to {question.strip()!r}: {remedy}")
