"""Group of the commands on kernels."""

from __future__ import annotations

import typer

from hwnas.cli.app import MORE, app

__all__ = ["kernels"]

kernels = typer.Typer(help="Operators in Triton: check, time and tune them.", no_args_is_help=True)
app.add_typer(kernels, name="kernels", rich_help_panel=MORE)


@kernels.callback()
def check_installed() -> None:
    """Refuse all commands of the group without Triton."""
    from hwnas.deploy.runtimes.checks import missing_package
    from hwnas.errors import ConfigError

    if reason := missing_package("triton", "'hwnas[kernels]'"):
        raise ConfigError(f"hwnas kernels cannot be used: {reason}")
