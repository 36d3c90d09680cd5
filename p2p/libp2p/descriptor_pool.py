"""The pool of the bundled libp2p's message types: in protobuf's common one, they would collide with those of another
libp2p in the same process."""

from functools import cache

from google.protobuf.descriptor_pool import DescriptorPool


@cache
def Default() -> DescriptorPool:
    """Return the pool, under the name that protobuf's generated code calls."""
    return DescriptorPool()
