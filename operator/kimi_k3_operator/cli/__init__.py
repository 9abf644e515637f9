"""`kimi-k3`: what the operator would do with a resource, shown without a cluster."""
