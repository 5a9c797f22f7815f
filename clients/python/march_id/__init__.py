"""Unique 64-bit IDs of March, issued in this process from segments that it leases ahead."""

from .client import Client, Tag, Text
from .rooms import Kind, MarchError

__all__ = ["Client", "Kind", "MarchError", "Tag", "Text"]
