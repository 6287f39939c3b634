"""The `explain` verb: what would be done with one request, and why, without Envoy or workers."""
