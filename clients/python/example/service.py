"""An HTTP service whose orders have IDs of March: service.py PORT ROOM..."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from march_id import Client, MarchError

ids = Client(sys.argv[2:])
ids.tag("order").warm()


class Orders(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        try:
            status, answer = 201, {"order": str(ids.next("order"))}  # a text: JavaScript rounds above 2^53
        except MarchError as error:
            status, answer = 503 if error.temporary else 500, {"error": str(error)}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders).serve_forever()
