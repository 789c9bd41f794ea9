"""`python -m anchorwatch` is `anchorwatch`."""

from anchorwatch.cli.app import main

if __name__ == "__main__":
    main()
