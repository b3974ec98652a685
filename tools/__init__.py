"""The makers of the documents: `python -m tools.make_tables`, `python -m tools.make_picture`."""
