"""What benchmarks share: paths, results and their tables, training runs, models and synthetic networks."""
