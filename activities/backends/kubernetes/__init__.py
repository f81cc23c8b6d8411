"""Real Kubernetes clusters behind the port, through the official client's `kubernetes.aio`."""
