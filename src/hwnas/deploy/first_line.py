"""What other libraries say when they fail, for messages of our own."""

__all__ = ["first_line"]

_LONGEST = 300


def first_line(error: BaseException) -> str:
    """What an error says, in one line that is not too long; its name where it says nothing."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
