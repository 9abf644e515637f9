"""The errors of this package. A user's mistake is one sentence, never a traceback."""

from __future__ import annotations


class KimiK3Error(Exception):
    """Base of every error that this package raises on purpose."""


class ProfileError(KimiK3Error):
    """A hardware profile that cannot be used; the message names the file and the field."""
