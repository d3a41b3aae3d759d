"""The process that tests/forks.py starts: it imports the libraries at the first command, and forks for each.

``python fork_server.py SOCKET``. It ends when its standard input does.
"""

import atexit
import contextlib
import gc
import importlib
import importlib.util
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import types

os.fsync = lambda file: os.fstat(getattr(file, "fileno", lambda: file)()) and None  # as in tests/conftest.py
STANDARD = ("stdin", "stdout", "stderr")


def import_libraries() -> None:
    """What every training needs, in the order in which zoo imports it; a fork's garbage collector leaves it alone."""
    if "torch" in sys.modules:
        return
    for name in ("torch", "lightning.pytorch", "torchmetrics", "jsonargparse", "torch.utils.tensorboard"):
        importlib.import_module(name)
    gc.freeze()  # a collection would take a third of a second, and copy the memory of all objects


def receive(connection: socket.socket) -> tuple[dict, list[int]]:
    """A request and the descriptors of its standard streams."""
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    size, content = int.from_bytes(head, "big"), b""
    while len(content) < size:
        content += connection.recv(size - len(content))
    return json.loads(content), descriptors


def become(request: dict, descriptors: list[int], base: list[str], address: str) -> None:
    """Turn this fork into what a new process of Python would be: streams, environment, folder, paths, random states.

    With ``nested``, the processes of Python that it starts are forks by the server at ``address``, too.
    """
    if request["session"]:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        if descriptor > 2:
            os.close(descriptor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    for number, name in enumerate(STANDARD):
        buffer = open(number, "rb" if name == "stdin" else "wb", closefd=False)  # noqa: SIM115
        lines = name == "stderr" or (name == "stdout" and os.isatty(1))
        usual = "backslashreplace" if name == "stderr" else errors or "strict"
        stream = io.TextIOWrapper(buffer, encoding or "utf-8", usual, line_buffering=lines)
        stream.mode = "r" if name == "stdin" else "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ["" if request["option"] == "-c" else os.getcwd(), *paths, *base]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    if request["nested"]:
        spec = importlib.util.spec_from_file_location("_forks", os.path.join(os.path.dirname(__file__), "forks.py"))
        forks = sys.modules["_forks"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(forks)
        forks.inherit(sys.executable, address)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def execute(request: dict) -> int:
    """Run the module or the code as __main__; the exit code."""
    code: object = 0
    try:
        if request["option"] == "-m":
            sys.argv = [request["what"], *request["words"]]
            runpy.run_module(request["what"], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *request["words"]]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(request["what"], "<string>", "exec"), vars(main))
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    return code or 0


def serve(address: str) -> None:
    """Fork for each request, tell the fork's process id, and, when it has ended, its exit code."""
    base = [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    waiting: dict[int, socket.socket] = {}
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: tests end their forks themselves
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen(64)
    os.rename(f"{address}.new", address)
    while True:
        ready = select.select([0, ended, listener], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            for process, connection in list(waiting.items()):
                if (status := os.waitpid(process, os.WNOHANG))[0]:
                    del waiting[process]
                    with contextlib.suppress(OSError):  # its test does not wait for it
                        connection.sendall(str(os.waitstatus_to_exitcode(status[1])).encode())
                    connection.close()
        if listener in ready:
            connection, _ = listener.accept()
            request, descriptors = receive(connection)
            import_libraries()
            if process := os.fork():
                connection.sendall(f"{process}\n".encode())
                waiting[process] = connection
                for descriptor in descriptors:
                    os.close(descriptor)
                continue
            signal.set_wakeup_fd(-1)
            for other in (listener, connection, *waiting.values()):
                other.close()
            os.close(ended)
            os.close(wakeup)
            number = 1
            try:
                become(request, descriptors, base, address)
                number = execute(request)
                threading._shutdown()
                atexit._run_exitfuncs()
                for stream in (sys.stdout, sys.stderr):
                    if stream is not None and not stream.closed:
                        stream.flush()
            finally:
                os._exit(number & 0xFF)
        if 0 in ready:  # its starter has ended
            return


if __name__ == "__main__":
    serve(sys.argv[1])
