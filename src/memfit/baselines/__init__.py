"""What other policies would do with a trace, to be measured against."""
