"""A server to try things out with, on port 3001."""

from http.server import HTTPServer, SimpleHTTPRequestHandler

print("listening on 3001", flush=True)
HTTPServer(("", 3001), SimpleHTTPRequestHandler).serve_forever()
