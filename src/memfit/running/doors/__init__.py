"""The ways to a storage's bytes that are not ops: each brings them in first."""
