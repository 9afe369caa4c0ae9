"""Moto's stand-in for S3: prints its address and ends when its standard input does."""

import logging
import sys

from moto.server import ThreadedMotoServer


def serve():
    # It tells every request on standard error.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve()
