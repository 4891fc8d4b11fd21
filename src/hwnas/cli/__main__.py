"""Entry point of ``python -m hwnas.cli``, which is the same as ``hwnas``."""

from hwnas.cli import main

if __name__ == "__main__":
    main()
