"""The version of memfit, for whatever may not import the package's top."""

__version__ = "0.1.0"
