"""What the sidecar costs, measured on loopback against Envoy alone and against a bare grpc.aio echo."""
