"""Runs a module as `python -m` does, but its uvicorn server listens on a UNIX socket instead of a port. The first word
is the socket's path, the second the module."""

import runpy
import socket
import sys
from functools import partialmethod
from typing import Any

import uvicorn
from urllib3.util import connection

if __name__ == "__main__":
    _, path, module, *options = sys.argv

    def to_itself(*_: Any, **__: Any) -> socket.socket:
        """A server may warm itself up through the address of its port."""
        itself = socket.socket(socket.AF_UNIX)
        itself.connect(path)
        return itself

    connection.create_connection = to_itself
    uvicorn.Config.__init__ = partialmethod(uvicorn.Config.__init__, uds=path)  # type: ignore[method-assign,assignment]
    sys.argv[1:] = options
    runpy.run_module(module, run_name="__main__", alter_sys=True)
