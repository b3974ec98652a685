"""Weights, gradients, optimizer state and activations in bfloat16."""

from __future__ import annotations

from memfit.comparing.compression.model import Model


def use_bf16(model: Model) -> None:
    """Give every floating-point number two bytes; the optimizer goes on counting its steps in 32 bits."""
    for piece in model.draft.pieces:
        if piece.is_float and piece.item_bytes > 2 and piece not in model.leftovers:
            piece.size_bytes, piece.item_bytes = 2 * piece.count, 2
