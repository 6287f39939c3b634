"""Configuration: pydantic models, YAML plus environment, and errors that name file and line."""
