"""The command line. Each command is one call of one public function."""


def main() -> None:
    """Entry point of `anchorwatch`."""
    from anchorwatch.cli.app import main as run_command

    run_command()
