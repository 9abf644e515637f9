"""A small kubelet that runs the containers of pods as processes of this machine. Linux, root, iproute2.

`ProcessKubelet` follows the pods bound to its nodes. A pod has a network namespace and an address of its own, which
other pods and the host reach; a container has a mount, process and host name space of its own over the machine's files,
so that /weights, /dev/shm and /etc are its own and nothing it writes remains. What an image is, says one table
(`images.py`). Everything is gone after `stop`, and what a killed run left is removed by the next.

Differences from a kubelet that a test may meet:
- users, capabilities, read-only roots, resource limits and activeDeadlineSeconds are not enforced; all runs as root
- a configMap or secret volume keeps the content it had when the pod started; emptyDir of memory is a plain folder
- a claim is a folder per namespace and name, whether or not a PersistentVolumeClaim exists
- names are resolved from /etc/hosts, which follows Services and EndpointSlices; there is no DNS server
- a cluster address is a TCP proxy in user space, reachable from pods alone; no node ports, no UDP
- a second deletion shortens the grace period only when it is forced
- no events, no logs or exec through the API server, no ephemeral containers, no resize
- containers end with the kubelet; a new one runs its pods afresh with the next restartCount
"""

from __future__ import annotations

from tests.harness.kubelet.images import Image, default_images, fake_checkpoint
from tests.harness.kubelet.kubelet import ProcessKubelet
from tests.harness.kubelet.machine import Timing
from tests.harness.kubelet.network import missing

__all__ = ["Image", "ProcessKubelet", "Timing", "default_images", "fake_checkpoint", "missing"]
