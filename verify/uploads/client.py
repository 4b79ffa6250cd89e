"""Uploads with a library of Python, and prints what each of them saw, a line each.

client.py LIBRARY URL SIZE:CHUNKED:COUNT ...   ->   SIZE CHUNKED STATUS WORDS
"""
import http.client
import io
import sys
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT = 30


def pieces(body):
    for i in range(0, len(body), 65536):
        yield body[i : i + 65536]


class HTTPClient:
    """http.client with a connection that is kept until the server says otherwise."""

    def __init__(self, url):
        self.at = urllib.parse.urlsplit(url)
        self.conn = None

    def __call__(self, body, chunked):
        if self.conn is None:
            self.conn = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=TIMEOUT)
        try:
            if chunked:
                self.conn.request("POST", "/", pieces(body), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
            else:
                self.conn.request("POST", "/", body)
            resp = self.conn.getresponse()
            resp.read()
            return resp.status
        except Exception:
            self.conn.close()
            self.conn = None
            raise


class URLLib:
    def __init__(self, url):
        self.url = url

    def __call__(self, body, chunked):
        r = urllib.request.Request(self.url, data=pieces(body) if chunked else body, method="POST")
        try:
            with urllib.request.urlopen(r, timeout=TIMEOUT) as resp:
                resp.read()
                return resp.status
        except urllib.error.HTTPError as e:
            e.read()
            return e.code


class Requests:
    def __init__(self, url):
        import requests

        self.url, self.session = url, requests.Session()

    def __call__(self, body, chunked):
        data = pieces(body) if chunked else body
        return self.session.post(self.url, data=data, timeout=TIMEOUT).status_code


ask = {"http.client": HTTPClient, "urllib": URLLib, "requests": Requests}[sys.argv[1]](sys.argv[2])
for job in sys.argv[3:]:
    size, chunked, count = map(int, job.split(":"))
    body = bytes(size)
    for _ in range(count):
        try:
            print(size, chunked, ask(body, chunked), "-", flush=True)
        except Exception as e:
            print(size, chunked, 0, type(e).__name__, str(e)[:120].replace("\n", " "), flush=True)
