"""An API in this process, on every adapter, and an app that has made its tasks known."""

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from perdure import App
from perdure.web.api import LOCAL, Api
from web_kit import client_of, shop


@pytest_asyncio.fixture
async def shop_app(storage_url: str) -> AsyncIterator[App]:
    async with shop(storage_url) as app:
        yield app


@pytest_asyncio.fixture
async def api(shop_app: App) -> AsyncIterator[Api]:
    async with Api(App(shop_app.url), LOCAL) as served:
        yield served


@pytest_asyncio.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """At this machine, before there are any keys."""
    async with client_of(api) as caller:
        yield caller
