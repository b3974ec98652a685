"""Other policies and allocators on a trace, to measure memfit against."""
