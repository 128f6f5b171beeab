"""Tools that connect by the clients that people use, as anybody would write them: nothing in them knows of a wall.

Each source has the same tools; its code is an ordinary use of one client.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

LAYER = "clients"
_HEAD = '''
import hashlib
from typing import Any
from engine import tool

def chain(error):
    """The names of an error's types, its causes' after it."""
    names = []
    while error is not None:
        names.append(type(error).__name__)
        error = error.__cause__ or error.__context__
    return names

def told(data):
    return f"{{len(data)}} {{hashlib.sha256(data).hexdigest()}}"

{client}

@tool(effect="read", layers={layers!r}, network={places!r})
{kind}def get(url: str) -> str:
    """What is there."""
    return ({wait}fetch(url)).decode()

@tool(effect="read", layers={layers!r}, network={places!r})
{kind}def down(url: str) -> str:
    """Size and digest of what is there."""
    return told({wait}fetch(url))

@tool(effect="read", layers={layers!r}, network={places!r})
{kind}def up(url: str, size: int) -> str:
    """What the server says of a body of that size."""
    return ({wait}fetch(url, bytes(range(256)) * (size // 256))).decode()

@tool(effect="read", layers={layers!r}, network={places!r})
{kind}def several(url: str, count: int) -> list[str]:
    """That many requests, one after the other, of one session where the client has such."""
    return [body.decode() for body in {wait}in_turn(url, count)]

@tool(effect="read", layers={layers!r}, network={places!r})
{kind}def failing(url: str) -> list[str]:
    """What the client makes of a place that cannot be had."""
    try:
        {wait}fetch(url)
    except Exception as error:
        return chain(error)
    return []
'''
_TOGETHER = '''
@tool(effect="read", layers={layers!r}, network={places!r})
async def together(url: str, count: int) -> list[str]:
    """That many at once."""
    return [body.decode() for body in await at_once(url, count)]
'''
_SOCKET = """
import socket, ssl
from urllib.parse import urlsplit

def request(made, parts, body):
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    method = "POST" if body else "GET"
    made.sendall(f"{method} {target} HTTP/1.1\\r\\nHost: {parts.netloc}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
    with made.makefile("rb") as answer:
        status = answer.readline()
        headers = {}
        while (line := answer.readline().strip()):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        found = answer.read(int(headers["content-length"]))
    return headers, found

def connection(parts):
    plain = socket.create_connection((parts.hostname, parts.port), timeout=30)
    return ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname)

def fetch(url, body=b""):
    with connection(urlsplit(url)) as made:
        headers, found = request(made, urlsplit(url), body)
    return fetch(headers["location"]) if "location" in headers else found

def in_turn(url, count):
    with connection(urlsplit(url)) as made:
        return [request(made, urlsplit(url), b"")[1] for _ in range(count)]
"""
_HTTP_CLIENT = """
import http.client
from urllib.parse import urlsplit

def request(made, url, body):
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    made.request("POST" if body else "GET", target, body=body or None)
    answer = made.getresponse()
    return answer.getheader("location"), answer.read()

def fetch(url, body=b""):
    made = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=30)
    try:
        location, found = request(made, url, body)
    finally:
        made.close()
    return fetch(location) if location else found

def in_turn(url, count):
    made = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=30)
    try:
        return [request(made, url, b"")[1] for _ in range(count)]
    finally:
        made.close()
"""
_URLLIB = """
import urllib.request

def fetch(url, body=None):
    with urllib.request.urlopen(url, body, timeout=30) as answer:
        return answer.read()

def in_turn(url, count):
    return [fetch(url) for _ in range(count)]
"""
_REQUESTS = """
import requests

def fetch(url, body=None):
    answer = requests.request("POST" if body else "GET", url, data=body, timeout=30)
    answer.raise_for_status()
    return answer.content

def in_turn(url, count):
    with requests.Session() as session:
        return [session.get(url, timeout=30).content for _ in range(count)]
"""
_HTTPX = """
import httpx

def fetch(url, body=None):
    with httpx.Client(follow_redirects=True, timeout=30) as client:
        return client.request("POST" if body else "GET", url, content=body).raise_for_status().content

def in_turn(url, count):
    with httpx.Client(timeout=30) as client:
        return [client.get(url).content for _ in range(count)]
"""
_HTTPX_ASYNC = """
import asyncio
import httpx

async def fetch(url, body=None):
    async with httpx.AsyncClient(follow_redirects=True, timeout=30) as client:
        return (await client.request("POST" if body else "GET", url, content=body)).raise_for_status().content

async def in_turn(url, count):
    async with httpx.AsyncClient(timeout=30) as client:
        return [(await client.get(url)).content for _ in range(count)]

async def at_once(url, count):
    async with httpx.AsyncClient(timeout=30) as client:
        return [answer.content for answer in await asyncio.gather(*(client.get(url) for _ in range(count)))]
"""
_AIOHTTP = """
import asyncio
import aiohttp

async def get_body(session, url, body=None):
    async with session.request("POST" if body else "GET", url, data=body, raise_for_status=True) as answer:
        return await answer.read()

async def fetch(url, body=None):
    async with aiohttp.ClientSession() as session:
        return await get_body(session, url, body)

async def in_turn(url, count):
    async with aiohttp.ClientSession() as session:
        return [await get_body(session, url) for _ in range(count)]

async def at_once(url, count):
    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*(get_body(session, url) for _ in range(count)))
"""
_ASYNCIO = """
import asyncio, ssl
from urllib.parse import urlsplit

async def request(reader, writer, parts, body):
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    writer.write(f"{'POST' if body else 'GET'} {target} HTTP/1.1\\r\\nHost: {parts.netloc}\\r\\n".encode())
    writer.write(f"Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
    await writer.drain()
    head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode().split("\\r\\n")[1:]
    headers = dict(line.lower().split(": ", 1) for line in head if line)
    return headers, await reader.readexactly(int(headers["content-length"]))

async def connection(parts):
    return await asyncio.open_connection(parts.hostname, parts.port, ssl=ssl.create_default_context())

async def fetch(url, body=b""):
    reader, writer = await connection(urlsplit(url))
    headers, found = await request(reader, writer, urlsplit(url), body)
    writer.close()
    return await fetch(headers["location"]) if "location" in headers else found

async def in_turn(url, count):
    reader, writer = await connection(urlsplit(url))
    found = [(await request(reader, writer, urlsplit(url), b""))[1] for _ in range(count)]
    writer.close()
    return found

async def at_once(url, count):
    return await asyncio.gather(*(fetch(url) for _ in range(count)))
"""
SYNCHRONOUS: Mapping[str, str] = MappingProxyType(
    {"socket": _SOCKET, "http.client": _HTTP_CLIENT, "urllib.request": _URLLIB, "requests": _REQUESTS, "httpx": _HTTPX}
)
ASYNCHRONOUS: Mapping[str, str] = MappingProxyType({"asyncio": _ASYNCIO, "httpx, async": _HTTPX_ASYNC, "aiohttp": _AIOHTTP})
CLIENTS = (*SYNCHRONOUS, *ASYNCHRONOUS)
INSTALLED = ("requests", "httpx", "httpx, async", "aiohttp")  # those out of the layer; the others are the standard library's


def source(client: str, places: Sequence[str]) -> str:
    """The tool file of that client, which asks for these places."""
    rights = {"layers": [LAYER] if client in INSTALLED else [], "places": list(places)}
    waits = client in ASYNCHRONOUS
    words = {"kind": "async ", "wait": "await "} if waits else {"kind": "", "wait": ""}
    head = _HEAD.format(client={**SYNCHRONOUS, **ASYNCHRONOUS}[client], **words, **rights)
    return head + (_TOGETHER.format(**rights) if waits else "")
