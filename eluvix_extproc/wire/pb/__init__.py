"""Generated from protos/ at build; never edited, never committed."""
