"""Reports: finished values in, documents out. Nothing is planned or measured here.

Each module has one report, as frozen dataclasses that others fill in, and `to_text`, which returns the text for a
terminal: a string, or a table of rich's. `to_svg` and `to_chrome` draw a report. Every report's JSON is made by
`show.to_json`, from the names of its fields, and `show.show` prints a report either way.
"""
