"""The command line. Each command is one call of one public function."""

import sys


def main() -> None:
    """Entry point of `anchorwatch`: an interrupt is one line, while it still imports too."""
    try:
        from anchorwatch.cli.app import main as run_command

        run_command()
    except KeyboardInterrupt:  # where nothing of ours may be imported yet
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    finally:
        # A string that was executed when the interrupt came (dataclasses do so) leaves a mark by
        # which Python would end as if killed, without the exit code; the next string removes it.
        exec("")
