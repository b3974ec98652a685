"""Keep, swap or recompute: what each costs, how little any mixture can, and a mixture that comes near."""
