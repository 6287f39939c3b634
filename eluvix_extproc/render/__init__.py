"""Envoy configuration made from ours: whole bootstraps for a plain Envoy, manifests for Istio."""

from eluvix_extproc.render.bootstrap import render
from eluvix_extproc.render.plan import Profile

__all__ = ["Profile", "render"]
