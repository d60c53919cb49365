"""All pages in one application: which path is whose."""

from __future__ import annotations

from aiohttp import web

from mqtt_broker.http_api.log import ranges
from mqtt_broker.http_api.pages import health, metrics
from mqtt_broker.http_api.request.middleware import Site, guard, set_headers
from mqtt_broker.http_api.v1 import bans, streams


def make_app(site: Site) -> web.Application:
    app = web.Application(
        middlewares=[guard(site)],
        client_max_size=site.limits.body_bytes_max,
    )
    app.on_response_prepare.append(set_headers)
    for page in (health, metrics, streams, bans, ranges):
        app.add_routes(page.routes(site))
    return app
