"""What Istio's manifests need to know of the Kubernetes cluster; none of it is in our configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IstioTarget:
    """`gateway` is `namespace/name` of a Gateway; `gateway_label` selects the pods that serve it."""

    name: str = "eluvix-extproc"
    namespace: str = "llm"
    gateway: str = "istio-system/llm-gateway"
    gateway_label: tuple[str, str] = ("istio", "ingressgateway")
    hosts: tuple[str, ...] = ("*",)
    image: str = "eluvix-extproc:0.1.0"
    replicas: int = 2
    port: int = 50051

    @property
    def gateway_namespace(self) -> str:
        return self.gateway.partition("/")[0]

    @property
    def sidecar_host(self) -> str:
        return f"{self.name}.{self.namespace}.svc.cluster.local"

    @property
    def sidecar_cluster(self) -> str:
        return f"outbound|{self.port}||{self.sidecar_host}"
