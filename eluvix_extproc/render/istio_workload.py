"""The sidecar as a Kubernetes workload: ConfigMap, Deployment, Service."""

from __future__ import annotations

import math

import yaml

from eluvix_extproc.config.models import Settings
from eluvix_extproc.render.istio_target import IstioTarget
from eluvix_extproc.render.tree import Tree, note

_FOLDER = "/etc/eluvix"
_FILE = "extproc.yaml"


def config_map(settings: Settings, target: IstioTarget) -> Tree:
    said = settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(target),
        "data": {_FILE: yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=110)},
    }


def deployment(settings: Settings, target: IstioTarget) -> Tree:
    labels = _labels(target)
    grace = math.ceil(settings.server.drain_timeout) + 30
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(target),
        "spec": {
            "replicas": target.replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": note(
                        "longer than server.drainTimeout: on SIGTERM the sidecar takes nothing new and streams may end",
                        grace,
                    ),
                    "automountServiceAccountToken": False,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "runAsGroup": 65532,
                        "fsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": labels},
                    }],
                    "containers": [_container(settings, target)],
                    "volumes": [
                        {"name": "config", "configMap": {"name": target.name}},
                        {"name": "tmp", "emptyDir": {}},
                    ],
                },
            },
        },
    }


def service(settings: Settings, target: IstioTarget) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(target),
        "spec": {
            "selector": _labels(target),
            "ports": [{
                "name": note("Istio takes the protocol from the name: without it, no HTTP/2", "grpc"),
                "appProtocol": "grpc",
                "port": target.port,
                "targetPort": "grpc",
            }],
        },
    }


def _container(settings: Settings, target: IstioTarget) -> Tree:
    ports = [{"name": "grpc", "containerPort": settings.server.listen.port}]
    if not settings.admin.listen.unix:
        ports.append({"name": "http-admin", "containerPort": settings.admin.listen.port})
    return {
        "name": "extproc",
        "image": target.image,
        "args": ["serve", "--config", f"{_FOLDER}/{_FILE}"],
        "ports": ports,
        "startupProbe": note(
            "tokenizers load before it is ready", {**_probe(settings, "readiness", 2), "failureThreshold": 60}
        ),
        "readinessProbe": {**_probe(settings, "readiness", 2), "failureThreshold": 2},
        "livenessProbe": {**_probe(settings, "liveness", 10), "failureThreshold": 3},
        "resources": note(
            "one process uses at most one core for Python; no CPU limit, because throttling is latency",
            {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        ),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": note(
            "mount the tokenizer files that the configuration names here as well",
            [
                {"name": "config", "mountPath": _FOLDER, "readOnly": True},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
        ),
    }


def _probe(settings: Settings, of: str, period_s: int) -> dict[str, Tree]:
    return {
        "grpc": {"port": settings.server.listen.port, "service": of},
        "periodSeconds": period_s,
        "timeoutSeconds": 2,
    }


def _metadata(target: IstioTarget) -> Tree:
    return {"name": target.name, "namespace": target.namespace, "labels": _labels(target)}


def _labels(target: IstioTarget) -> dict[str, str]:
    return {"app.kubernetes.io/name": target.name}
