"""`python -m anchorwatch` is `anchorwatch`."""

from anchorwatch.cli import main

if __name__ == "__main__":
    main()
