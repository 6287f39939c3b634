"""The pure core: values in, values out. No I/O, no clock, no randomness (import-linter holds this)."""
