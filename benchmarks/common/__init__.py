"""What benchmarks share: paths, results and their tables, training runs and models."""
