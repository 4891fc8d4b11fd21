"""Errors of other libraries in one line, for messages of hwnas."""

__all__ = ["first_line"]

_LONGEST = 300


def first_line(error: BaseException, named: bool = False) -> str:
    """Return the first line of an error's message, shortened; its type's name if it has no message.

    Args:
        error: Error of any library.
        named: Whether to include the type's name always: the message of a KeyError is only the key.
    """
    line = repr(error) if named else str(error).strip() or type(error).__name__
    line = line.splitlines()[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
