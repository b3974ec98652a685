"""`python -m benchmarks.gpu`."""

from benchmarks.gpu.runner import main

if __name__ == "__main__":
    raise SystemExit(main())
