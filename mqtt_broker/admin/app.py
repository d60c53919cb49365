"""All pages in one application: which path is whose."""

from __future__ import annotations

from aiohttp import web

from mqtt_broker.admin import api, bans, health, metrics, ranges
from mqtt_broker.admin.pages import Site, guard, set_headers


def make_app(site: Site) -> web.Application:
    app = web.Application(
        middlewares=[guard(site)],
        client_max_size=site.limits.body_bytes_max,
    )
    app.on_response_prepare.append(set_headers)
    for page in (health, metrics, api, bans, ranges):
        app.add_routes(page.routes(site))
    return app
