"""The private name of jsonargparse that zoo needs; tests/config/test_jsonargparse_internals.py watches it.

`get_signature_parameters` follows `**kwargs` from a task through its model to the stack, which is what makes one
signature enough. In public, jsonargparse does so only while it adds arguments to a parser, which keeps neither the
class that declares a parameter nor the order of positional ones.
"""

from jsonargparse._parameter_resolvers import get_signature_parameters

__all__ = ["get_signature_parameters"]
