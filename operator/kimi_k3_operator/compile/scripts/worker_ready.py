"""Readiness of a headless worker, which has no HTTP of its own: its group answers."""

import os
import urllib.request

address = f"http://{os.environ['LWS_LEADER_ADDRESS']}:{os.environ['LEADER_PORT']}/health"
urllib.request.urlopen(address, timeout=8).close()  # raises, and so exits with 1, unless the answer is 2xx
