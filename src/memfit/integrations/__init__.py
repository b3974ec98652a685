"""What connects memfit to trainers and notebooks. The `with` block of a session stays the way in; these report on it.

Each module imports the library that it is for, and nothing imports a module whose library may be missing.
"""
