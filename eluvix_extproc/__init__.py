"""Eluvix ext_proc: an Envoy external-processing sidecar that steers LLM inference."""

__version__ = "0.1.0"
