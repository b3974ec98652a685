"""The machine: how fast its copies are, and whether all that memfit needs is there."""
