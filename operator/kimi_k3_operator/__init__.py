"""Kubernetes operator that serves Kimi K3."""

__version__ = "0.1.0"
