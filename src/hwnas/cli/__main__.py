"""``python -m hwnas.cli`` is ``hwnas``."""

from hwnas.cli import main

if __name__ == "__main__":
    main()
