"""What techniques of model compression would take off a recorded iteration: arithmetic on its trace."""

from memfit.comparing.compression.techniques import Chosen, compressed, library_lines, parse_techniques

__all__ = ["Chosen", "compressed", "library_lines", "parse_techniques"]
