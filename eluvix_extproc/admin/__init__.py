"""The admin HTTP server: health, metrics, fleet, decisions, configuration and a live page."""
