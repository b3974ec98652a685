"""`python -m memfit`: the same as the `memfit` command."""

from memfit.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
