"""What other libraries, and files from anywhere, say when they fail, for messages of our own."""

__all__ = ["first_line"]

_LONGEST = 300


def first_line(error: BaseException, named: bool = False) -> str:
    """What an error says, in one line that is not too long; its name where it says nothing.

    Args:
        error: Of anyone.
        named: With the error's name in any case: a KeyError says nothing but the key.
    """
    line = repr(error) if named else str(error).strip() or type(error).__name__
    line = line.splitlines()[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
